#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/program_options/variables_map.hpp>
#include <fmt/format.h>

namespace ddp::train {

// A value that cannot be used; text is "--flag value: what was expected".
struct BadValue {
  std::string text;
};

// The values of a flag and what they mean.
template <typename Choice>
using Choices = std::span<const std::pair<const char*, Choice>>;

template <typename Choice>
const char* name_of(Choice value, Choices<Choice> choices) {
  return std::find_if(choices.begin(), choices.end(),
                      [value](const auto& each) { return each.second == value; })
      ->first;
}

// The flags that were given. read() stores a flag's value in `value`, or leaves `value` alone if
// the flag was not given; it throws BadValue.
class OptionValues {
 public:
  explicit OptionValues(const boost::program_options::variables_map& given) : given_(given) {}

  bool has(const char* flag) const { return given_.count(flag) != 0; }

  // Whether it was given with this value.
  bool is(const char* flag, const char* value) const { return has(flag) && text_of(flag) == value; }

  void read(const char* flag, std::string& value) const {
    if (has(flag)) value = text_of(flag);
  }

  template <typename Integer>
  void read(const char* flag, Integer& value, Integer low,
            Integer high = std::numeric_limits<Integer>::max()) const {
    if (!has(flag)) return;
    const std::string& text = text_of(flag);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
      throw BadValue{
          fmt::format("--{} {}: expected a whole number from {} to {}", flag, text, low, high)};
    }
  }

  // In (low, high), or [low, high) if `with_low`.
  void read(const char* flag, double& value, double low, double high, bool with_low) const {
    if (!has(flag)) return;
    const std::string& text = text_of(flag);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number =
        error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    if (!number || value >= high || (with_low ? value < low : value <= low)) {
      throw BadValue{fmt::format("--{} {}: expected a number {} {} and less than {}", flag, text,
                                 with_low ? "of at least" : "greater than", low, high)};
    }
  }

  template <typename Choice>
  void read_choice(const char* flag, Choice& value, Choices<Choice> choices) const {
    if (!has(flag)) return;
    const std::string& text = text_of(flag);
    std::string names;
    for (const auto& [name, choice] : choices) {
      if (text == name) {
        value = choice;
        return;
      }
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    }
    throw BadValue{fmt::format("--{} {}: expected one of {}", flag, text, names)};
  }

  void read_name(const char* flag, std::string& value, std::span<const char* const> names) const {
    std::vector<std::pair<const char*, std::string>> choices;
    for (const char* name : names) choices.emplace_back(name, name);
    read_choice<std::string>(flag, value, choices);
  }

  void read_switch(const char* flag, bool& value) const {
    static constexpr std::pair<const char*, bool> kSwitch[] = {{"on", true}, {"off", false}};
    read_choice<bool>(flag, value, kSwitch);
  }

 private:
  const std::string& text_of(const char* flag) const { return given_[flag].as<std::string>(); }

  const boost::program_options::variables_map& given_;
};

}  // namespace ddp::train
