#pragma once

#include <string_view>

namespace ddp::checkpoint {

// Whether `pattern` matches all of `name`: `*` matches any characters, also '/', `?` matches one,
// and other characters match themselves.
bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace ddp::checkpoint
