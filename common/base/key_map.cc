#include "common/base/key_map.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace ddp {
namespace {

constexpr std::size_t kKeepBytes = 64u << 10;

Result<std::int64_t> add_to_decimal(std::string_view text, std::int64_t delta) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  std::string_view digits = text;
  while (!digits.empty() && kSpaces.find(digits.front()) != std::string_view::npos) {
    digits.remove_prefix(1);
  }
  // from_chars accepts no plus sign.
  if (digits.size() > 1 && digits[0] == '+' && digits[1] != '-') digits.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc()) {
    return make_error(
        Errc::kInvalidArgument,
        "the value '{}' is not a 64-bit decimal number, so nothing can be added to it",
        text.substr(0, 32));
  }
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(number) +
                                   static_cast<std::uint64_t>(delta));
}

}  // namespace

void KeyMap::put(std::string_view key, std::string_view value) {
  bytes_ += value.size();
  const auto found = values_.find(key);
  if (found == values_.end()) {
    values_.emplace(key, value);
    bytes_ += key.size();
    return;
  }
  std::string& held = found->second;
  bytes_ -= held.size();
  if (held.capacity() > kKeepBytes && value.size() < held.capacity() / 4) held = std::string();
  held.assign(value);
}

void KeyMap::append(std::string_view key, std::string_view suffix) {
  bytes_ += suffix.size();
  const auto found = values_.find(key);
  if (found == values_.end()) {
    values_.emplace(key, suffix);
    bytes_ += key.size();
  } else {
    found->second.append(suffix);
  }
}

bool KeyMap::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return true;
}

const std::string* KeyMap::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void KeyMap::push(std::string_view key, std::string_view value) {
  auto found = queues_.find(key);
  if (found == queues_.end()) found = queues_.emplace(key, std::deque<std::string>()).first;
  found->second.emplace_back(value);
  bytes_ += value.size();
}

KeyMap::Popped KeyMap::pop(std::string_view key) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) return {};
  std::deque<std::string>& queue = found->second;
  Popped popped{queue.size(), std::move(queue.front())};
  bytes_ -= popped.value.size();
  queue.pop_front();
  if (queue.empty()) queues_.erase(found);
  return popped;
}

std::size_t KeyMap::queue_len(std::string_view key) const {
  const auto found = queues_.find(key);
  return found == queues_.end() ? 0 : found->second.size();
}

Result<std::int64_t> KeyMap::sum(std::string_view key, std::int64_t delta) const {
  const std::string* const value = find(key);
  return add_to_decimal(value == nullptr ? std::string_view("0") : *value, delta);
}

KeyMap::Compared KeyMap::compare(std::string_view key, std::string_view expected,
                                 std::string_view desired) const {
  const std::string* const value = find(key);
  // For an absent key, PyTorch's store answers with the expected value, and clients rely on that.
  if (value == nullptr) return {expected.empty() ? desired : expected, expected.empty()};
  if (*value == expected) return {desired, true};
  return {*value, false};
}

bool KeyMap::has(std::string_view key) const {
  return values_.contains(key) || queues_.contains(key);
}

bool KeyMap::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return has(key); });
}

std::string KeyMap::missing(const std::vector<std::string>& keys) const {
  std::string names;
  for (const std::string& key : keys) {
    if (!has(key)) names += (names.empty() ? "'" : ", '") + key + "'";
  }
  return names;
}

}  // namespace ddp
