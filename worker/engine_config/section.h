#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddp::engine {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw std::invalid_argument(fmt::format(format, std::forward<Args>(args)...));
}

// One object of a configuration. A missing or null key leaves its value unchanged; a wrong type or
// an out-of-range value throws std::invalid_argument with the key's path. Every key that is read
// counts as known; finish() reports the others.
class Section {
 public:
  // `object` outlives this one. `path`: of the object; empty for the whole configuration.
  Section(const nlohmann::json& object, std::string path);

  // Null where there is nothing.
  const nlohmann::json* find(std::string_view key);
  void read(std::string_view key, double& value, double low, double high);
  // Also accepts a whole number that is written with a point or an exponent (5e8).
  void read(std::string_view key, std::int64_t& value, std::int64_t low);
  void read(std::string_view key, int& value, int low);
  void read(std::string_view key, bool& value);
  // Reads one of these words; the key is required.
  std::string word(std::string_view key, std::span<const std::string_view> possible);
  // Adds those of the keys that are there to `unused`, with their paths.
  void ignore(std::span<const std::string_view> keys, std::vector<std::string>& unused);
  void finish() const;

  std::string name(std::string_view key) const;

 private:
  const nlohmann::json& json_;
  std::string path_;
  std::vector<std::string> known_;
};

}  // namespace ddp::engine
