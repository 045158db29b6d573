#pragma once

#include <string>

#include "common/base/result.h"

namespace ddp {

// Makes a kIo error of an errno: "PATH: cannot WHAT: the system's reason".
Error io_error(const std::string& path, const char* what, int error);

// Writes the whole text. `path` is for the error message only. kIo.
Result<void> write_all(int fd, const std::string& text, const std::string& path);

}  // namespace ddp
