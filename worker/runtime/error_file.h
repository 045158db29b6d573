#pragma once

#include <string>

namespace ddp {

// Leaves what this process fails of in the file that TORCHELASTIC_ERROR_FILE names, where torchrun,
// ddp-run and their like look for it. The last call counts. Nothing without the variable; a file
// that cannot be written is not an error worth a second one.
void write_error_file(const std::string& message);

}  // namespace ddp
