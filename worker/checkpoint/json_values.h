#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"

namespace ddp::checkpoint {

// Parses JSON text from outside. kCorrupt unless it is one value, at most `max_depth` levels deep,
// without duplicate keys.
Result<nlohmann::json> parse_strict(std::string_view text, std::size_t max_depth);

// JSON has no NaN and no infinity; the library would write null for them. encode_values replaces
// each by {"$float":"<its 64 bits in hexadecimal>"} and decode_values undoes it, so every number
// comes back bit for bit. kInvalidArgument, which names the place, for values that text cannot
// represent: binary values, strings that are not UTF-8, and objects that look like the replacement.
Result<nlohmann::json> encode_values(const nlohmann::json& value);
Result<nlohmann::json> decode_values(const nlohmann::json& value);

// Returns a number from outside that must be an integer from `least` to `most`; otherwise throws a
// nlohmann::json::exception. (json::get would convert even 1e300 or 2.5.)
std::int64_t integer_between(const nlohmann::json& number, std::int64_t least, std::int64_t most);

// A list of integers of any size; throws likewise.
std::vector<std::int64_t> integers(const nlohmann::json& list);

template <typename T>
T integer(const nlohmann::json& number) {
  constexpr bool kIsWide = std::numeric_limits<T>::digits >= 63;
  return static_cast<T>(
      integer_between(number, static_cast<std::int64_t>(std::numeric_limits<T>::min()),
                      kIsWide ? std::numeric_limits<std::int64_t>::max()
                              : static_cast<std::int64_t>(std::numeric_limits<T>::max())));
}

}  // namespace ddp::checkpoint
