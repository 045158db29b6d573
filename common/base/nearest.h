#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp {

// How many letters have to be put in, left out or replaced to make one of the other (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The first of the names that is nearest to what somebody has typed, for a message; empty if none
// is so near that he may have meant it: within 2 letters, or a third of them.
std::string_view nearest_of(std::string_view typed, const std::vector<std::string>& names);

}  // namespace ddp
