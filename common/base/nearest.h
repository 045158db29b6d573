#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp {

// How many letters must be inserted, removed or replaced to turn one into the other (Levenshtein).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The first name that is nearest to what the user has typed, for a message. Empty if none is near
// enough to be what was meant: within 2 letters, or a third of them.
std::string_view nearest_of(std::string_view typed, const std::vector<std::string>& names);

}  // namespace ddp
