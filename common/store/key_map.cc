#include "common/store/key_map.h"

#include <algorithm>
#include <utility>

#include "common/wire/c10d.h"

namespace ddp {

void KeyMap::put(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    values_.emplace(key, value);
  } else {
    found->second.assign(value);
  }
}

void KeyMap::append(std::string_view key, std::string_view suffix) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    values_.emplace(key, suffix);
  } else {
    found->second.append(suffix);
  }
}

bool KeyMap::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  return true;
}

const std::string* KeyMap::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string> KeyMap::list() const {
  std::vector<std::string> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

std::vector<std::string> KeyMap::values_of(const std::vector<std::string>& keys) const {
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(values_.at(key));
  return values;
}

void KeyMap::push(std::string_view key, std::string_view value) {
  auto found = queues_.find(key);
  if (found == queues_.end()) found = queues_.emplace(key, std::deque<std::string>()).first;
  found->second.emplace_back(value);
}

std::optional<std::string> KeyMap::pop(std::string_view key) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) return std::nullopt;
  std::string value = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) queues_.erase(found);
  return value;
}

const std::string* KeyMap::front(std::string_view key) const {
  const auto found = queues_.find(key);
  return found == queues_.end() ? nullptr : &found->second.front();
}

std::int64_t KeyMap::queue_len(std::string_view key) const {
  const auto found = queues_.find(key);
  return found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

Result<std::int64_t> KeyMap::sum(std::string_view key, std::int64_t delta) const {
  const std::string* const value = find(key);
  return wire::c10d::add_to_decimal(value == nullptr ? std::string_view("0") : *value, delta);
}

std::string KeyMap::compare(std::string_view key, std::string_view expected,
                            std::string_view desired, bool& stores) const {
  const std::string* const value = find(key);
  stores = value == nullptr ? expected.empty() : *value == expected;
  if (stores) return std::string(desired);
  return value == nullptr ? std::string(expected) : *value;
}

bool KeyMap::has(std::string_view key) const {
  return values_.contains(key) || queues_.contains(key);
}

bool KeyMap::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return has(key); });
}

bool KeyMap::has_all_values(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return values_.contains(key); });
}

std::string KeyMap::missing(const std::vector<std::string>& keys, bool or_queue) const {
  std::string names;
  for (const std::string& key : keys) {
    const bool there = or_queue ? has(key) : values_.contains(key);
    if (!there) names += (names.empty() ? "'" : ", '") + key + "'";
  }
  return names;
}

}  // namespace ddp
