#include "launcher/ddp_run/error_above.h"

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "common/wire/error_file.h"

namespace ddp::run {

void tell_launcher_above(int exit_code, const std::string& summary, const std::string& error) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  wire::ErrorFile plain;
  plain.message = summary;
  plain.time_ms = static_cast<std::int64_t>(std::time(nullptr)) * 1'000;
  plain.exit_code = exit_code;
  std::ofstream(path) << (error.empty() ? wire::encode_error_file(plain) : error);
}

}  // namespace ddp::run
