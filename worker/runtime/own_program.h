#pragma once

#include <string>

namespace ddp::runtime {

// Finds one of our programs, for users of libddp. Returns the value of the environment variable
// `variable` if it is set; else the file `name` beside this program, beside libddp, or in bin
// beside libddp's folder; else the name alone, so that PATH is searched.
std::string own_program(const std::string& name, const char* variable);

}  // namespace ddp::runtime
