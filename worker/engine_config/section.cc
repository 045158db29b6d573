#include "worker/engine_config/section.h"

#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "common/base/nearest.h"

namespace ddp::engine {

using nlohmann::json;

Section::Section(const json& object, std::string path) : json_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  refuse("{}: expected an object, it is {}", path_.empty() ? "the configuration" : path_,
         object.dump());
}

const json* Section::find(std::string_view key) {
  known_.emplace_back(key);
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void Section::read(std::string_view key, double& value, double low, double high) {
  const json* const found = find(key);
  if (found == nullptr) return;
  const double number = found->is_number() ? found->get<double>() : low - 1;
  if (!(number >= low && number <= high)) {
    refuse("{}: expected a number from {} to {}, it is {}", name(key), low, high, found->dump());
  }
  value = number;
}

void Section::read(std::string_view key, std::int64_t& value, std::int64_t low) {
  constexpr double kExact = 9e15;  // Up to here every whole number has a double of its own.
  const json* const found = find(key);
  if (found == nullptr) return;
  const double number = found->is_number() ? found->get<double>() : 0.5;
  const bool in_range = number >= -kExact && number <= kExact;
  const std::int64_t whole = in_range ? static_cast<std::int64_t>(number) : 0;
  if (!in_range || static_cast<double>(whole) != number || whole < low) {
    refuse("{}: expected a whole number from {}, it is {}", name(key), low, found->dump());
  }
  value = whole;
}

void Section::read(std::string_view key, int& value, int low) {
  std::int64_t number = value;
  read(key, number, static_cast<std::int64_t>(low));
  value = static_cast<int>(std::min<std::int64_t>(number, std::numeric_limits<int>::max()));
}

void Section::read(std::string_view key, bool& value) {
  const json* const found = find(key);
  if (found == nullptr) return;
  if (!found->is_boolean()) {
    refuse("{}: expected true or false, it is {}", name(key), found->dump());
  }
  value = found->get<bool>();
}

std::string Section::word(std::string_view key, std::span<const std::string_view> possible) {
  const json* const found = find(key);
  if (found != nullptr && found->is_string()) {
    auto text = found->get<std::string>();
    if (std::find(possible.begin(), possible.end(), text) != possible.end()) return text;
  }
  refuse("{}: expected one of {}, {}", name(key), fmt::join(possible, ", "),
         found == nullptr ? "it is missing" : "it is " + found->dump());
}

void Section::ignore(std::span<const std::string_view> keys, std::vector<std::string>& unused) {
  for (const std::string_view key : keys) {
    if (find(key) != nullptr) unused.push_back(name(key));
  }
}

void Section::finish() const {
  for (const auto& [key, value] : json_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string_view nearest = nearest_of(key, known_);
    if (nearest.empty()) {
      refuse("{}: there is no such key; there are {}", name(key), fmt::join(known_, ", "));
    }
    refuse("{}: there is no such key; {} is the nearest", name(key), name(nearest));
  }
}

std::string Section::name(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

}  // namespace ddp::engine
