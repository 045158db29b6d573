#include "common/process/write_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <system_error>

#include "common/base/unique_fd.h"

namespace ddp {

Error io_error(const std::string& path, const char* what, int error) {
  return make_error(Errc::kIo, "{}: cannot {}: {}", path, what,
                    std::generic_category().message(error));
}

int write_all(int fd, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd room{fd, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

Result<void> write_all(int fd, std::string_view text, const std::string& path) {
  const int error = write_all(fd, text);
  if (error != 0) return io_error(path, "write", error);
  return {};
}

Result<void> write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) return io_error(temporary, "create", errno);
  auto written = write_all(file.get(), text, path);
  if (written && ::fsync(file.get()) != 0) written = io_error(path, "write", errno);
  if (written && std::rename(temporary.c_str(), path.c_str()) != 0) {
    written = io_error(path, "rename", errno);
  }
  if (!written) ::unlink(temporary.c_str());
  return written;
}

}  // namespace ddp
