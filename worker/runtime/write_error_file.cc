#include "worker/runtime/write_error_file.h"

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "common/wire/error_file.h"

namespace ddp::runtime {

void write_error_file(const std::string& message, const std::string& callstack, bool secondary) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  wire::ErrorFile error;
  error.message = message;
  error.callstack = callstack;
  error.secondary = secondary;
  error.time_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  std::ofstream(path) << wire::encode_error_file(error);
}

}  // namespace ddp::runtime
