#include "common/process/write_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "common/base/unique_fd.h"

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
