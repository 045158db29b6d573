#pragma once

#include <string>

namespace ddp {

// The file of one of our programs, for somebody who uses libddp: what `variable` of the environment
// says, else `name` beside this program's file, beside libddp, or in bin beside its folder. If
// there is none, the name alone: PATH is searched then.
std::string own_program(const std::string& name, const char* variable);

}  // namespace ddp
