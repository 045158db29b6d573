#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>

namespace ddp::test {

// After how long without an answer, or without room at the other end, the kernel ends a TCP
// connection; 0: after its own limits.
inline std::chrono::milliseconds kernels_time_limit(int fd) {
  unsigned limit = ~0U;
  socklen_t size = sizeof(limit);
  ::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size);
  return std::chrono::milliseconds(limit);
}

}  // namespace ddp::test
