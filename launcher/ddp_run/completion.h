#pragma once

#include <string>

namespace ddp::run {

// A script for bash, zsh, tcsh or fish by which the shell completes ddp-run's flags and their
// values, and leaves what follows the program to file names (tcsh cannot tell where that begins).
// Made from the flag table.
std::string completion_script(const std::string& shell);

std::string bash_completion();
std::string zsh_completion();
std::string tcsh_completion();
std::string fish_completion();

}  // namespace ddp::run
