#pragma once

#include <string>

namespace ddp::runtime {

// Writes why this process fails to the file that TORCHELASTIC_ERROR_FILE names, where torchrun,
// ddp-run and others look for it. The last call counts. Does nothing without the variable. Ignores
// a file that cannot be written, so as not to hide the first error.
void write_error_file(const std::string& message);

}  // namespace ddp::runtime
