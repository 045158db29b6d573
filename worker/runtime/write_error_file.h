#pragma once

#include <string>

namespace ddp::runtime {

// Writes why this process fails to the file that TORCHELASTIC_ERROR_FILE names, where torchrun,
// ddp-run and others look for it. The last call counts. Does nothing without the variable. Ignores
// a file that cannot be written, so as not to hide the first error. callstack: several lines, or
// empty. secondary: the cause lies with another rank.
void write_error_file(const std::string& message, const std::string& callstack = {},
                      bool secondary = false);

}  // namespace ddp::runtime
