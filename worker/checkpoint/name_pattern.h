#pragma once

#include <string_view>

namespace ddp::checkpoint {

// Whether `*` (any characters, also '/'), `?` (one) and other characters (themselves) in `pattern`
// cover all of `name`.
bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace ddp::checkpoint
