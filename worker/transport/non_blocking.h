#pragma once

#include <errno.h>
#include <fcntl.h>

#include "common/base/check.h"

namespace ddp::transport {

inline void make_non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  DDP_CHECK(flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0, "fd={} errno={}", fd,
            errno);
}

// Whether to retry a system call later that failed with this errno.
inline bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace ddp::transport
