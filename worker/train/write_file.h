#pragma once

#include <string>

#include "common/base/result.h"

namespace ddp::train {

// kIo: "PATH: cannot WHAT: the system's reason", of an errno.
Error io_error(const std::string& path, const char* what, int error);

// Writes the whole text. `path` is for the message. kIo.
Result<void> write_all(int fd, const std::string& text, const std::string& path);

}  // namespace ddp::train
