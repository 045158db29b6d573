#pragma once

#include <string>

namespace ddp::run {

// A script for bash that completes ddp-run's flags and their values, and leaves what follows the
// program to file names. Made from the flag table.
std::string bash_completion();

}  // namespace ddp::run
