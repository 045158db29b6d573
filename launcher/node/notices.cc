#include "launcher/node/notices.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <limits.h>

#include "common/log/log.h"
#include "common/terminal/terminal.h"

namespace ddp::node {

void print_notice(std::string_view text) {
  if (!log::enabled(log::Level::kWarning)) return;
  std::fprintf(stderr, "ddp-run: %s\n", std::string(text).c_str());
}

void Notices::print(std::string_view text) {
  waiting_ += text;
  if (!text.ends_with('\n')) waiting_ += '\n';
  write(false);
}

void Notices::erase_status() {
  waiting_ += terminal::kEraseLine;
  write(false);
}

void Notices::flush() { write(true); }

// The descriptor stays blocking, because other processes share it. A writable pipe takes PIPE_BUF
// bytes without blocking, so no write is larger.
void Notices::write(bool wait) {
  while (!waiting_.empty()) {
    pollfd ready{fd_, POLLOUT, 0};
    const int count = ::poll(&ready, 1, wait ? -1 : 0);
    if (count <= 0) return;
    const ssize_t written =
        ::write(fd_, waiting_.data(), std::min<std::size_t>(waiting_.size(), PIPE_BUF));
    if (written > 0) {
      waiting_.erase(0, static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      if (!wait) return;  // Another process made it non-blocking and has filled it.
    } else if (errno != EINTR) {
      waiting_.clear();
    }
  }
}

}  // namespace ddp::node
