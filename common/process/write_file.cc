#include "common/process/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace ddp {

Error io_error(const std::string& path, const char* what, int error) {
  return make_error(Errc::kIo, "{}: cannot {}: {}", path, what,
                    std::generic_category().message(error));
}

Result<void> write_all(int fd, const std::string& text, const std::string& path) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::write(fd, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path, "write", errno);
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace ddp
