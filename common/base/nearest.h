#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp {

// How many letters must be inserted, removed, replaced or swapped with the next to turn one into
// the other (the optimal string alignment distance: no letter is changed twice).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The first name that is nearest to what the user has typed, for a message. Empty if none is near
// enough to be what was meant: within 2 letters, or a third of them.
std::string_view nearest_of(std::string_view typed, const std::vector<std::string>& names);

}  // namespace ddp
