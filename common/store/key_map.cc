#include "common/store/key_map.h"

#include <algorithm>

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

bool KeyMap::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) { return values_.contains(key); });
}

Error KeyMap::missing(const std::vector<std::string>& keys,
                      std::chrono::milliseconds timeout) const {
  std::string names;
  for (const std::string& key : keys) {
    if (!values_.contains(key)) names += (names.empty() ? "'" : ", '") + key + "'";
  }
  return make_error(Errc::kTimeout, "store: not there after {} ms: {}", timeout.count(), names);
}

}  // namespace ddp
