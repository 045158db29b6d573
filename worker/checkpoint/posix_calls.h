#pragma once

#include <cerrno>
#include <string>
#include <system_error>

#include "common/base/result.h"

// What the sources of posix_file_system() share.
namespace ddp::checkpoint {

// kIo: "cannot write FILE: No space left on device".
inline Error io_error(const char* what, const std::string& path, int error_number) {
  return make_error(Errc::kIo, "cannot {} {}: {}", what, path,
                    std::generic_category().message(error_number));
}

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace ddp::checkpoint
