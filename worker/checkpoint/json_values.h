#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/base/result.h"

namespace ddp::checkpoint {

// JSON text from outside: kCorrupt unless it is one value, at most `max_depth` levels deep, without
// duplicate keys.
Result<nlohmann::json> parse_strict(std::string_view text, std::size_t max_depth);

// JSON knows no NaN and no infinity, and the library would write null for them. encode_values
// replaces each by
// {"$float":"<its 64 bits in hexadecimal>"}, decode_values undoes it, so every number comes back
// bit for bit. kInvalidArgument, naming the place, for what no text can carry: binary values,
// strings that are not UTF-8, and objects that look like the replacement.
Result<nlohmann::json> encode_values(const nlohmann::json& value);
Result<nlohmann::json> decode_values(const nlohmann::json& value);

}  // namespace ddp::checkpoint
