#include "launcher/node/error_above.h"

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "common/wire/error_file.h"

namespace ddp::node {

void tell_launcher_above(int exit_code, const std::string& summary, const std::string& error) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  wire::ErrorFile file = wire::decode_error_file(error);
  if (file.message.empty()) file.message = summary;
  if (!file.exit_code) file.exit_code = exit_code;
  // A launcher above takes the failure with the smallest time as the first, so a missing time (0)
  // would always win.
  if (file.time_ms == 0) file.time_ms = static_cast<std::int64_t>(std::time(nullptr)) * 1'000;
  std::ofstream(path) << wire::encode_error_file(file);
}

}  // namespace ddp::node
