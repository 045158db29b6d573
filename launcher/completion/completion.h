#pragma once

#include <string>

namespace ddp::completion {

// A script with which bash, zsh, tcsh or fish completes ddp-run's flags and their values, and file
// names after the program (tcsh cannot tell where the program is). Made from the flag table.
std::string completion_script(const std::string& shell);

std::string bash_completion();
std::string zsh_completion();
std::string tcsh_completion();
std::string fish_completion();

}  // namespace ddp::completion
