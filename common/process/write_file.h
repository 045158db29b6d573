#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace ddp {

// Makes a kIo error of an errno: "PATH: cannot WHAT: the system's reason".
Error io_error(const std::string& path, const char* what, int error);

// Writes all bytes, and waits while there is no room for them, also if another process has made the
// descriptor non-blocking. Returns 0 or errno; `bytes` is then what was not written.
int write_all(int fd, std::string_view& bytes);

// The same; `path` is for the error message only. kIo.
Result<void> write_all(int fd, std::string_view text, const std::string& path);

// Makes the file, or replaces it as a whole: who reads it sees the old one or the new one, also
// after a crash. It is written as PATH.tmp first, always, so that the next process overwrites what
// a killed one has left. kIo.
Result<void> write_file(const std::string& path, const std::string& text);

}  // namespace ddp
