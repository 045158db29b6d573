#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>

namespace ddp {

// The whole text as a decimal number from `lowest` to `highest`; empty if it is not one.
template <typename Number>
std::optional<Number> parse_whole_number(std::string_view text,
                                         Number lowest = std::numeric_limits<Number>::min(),
                                         Number highest = std::numeric_limits<Number>::max()) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number >= lowest && number <= highest ? std::optional(number) : std::nullopt;
}

}  // namespace ddp
