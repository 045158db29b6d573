#pragma once

#include <cstddef>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/net/timer.h"

namespace ddp::server {

// Returns freed memory to the system. The C library keeps freed memory, so the daemon would stay as
// large as its largest crowd of clients ever made it. On the thread of `io`. One object per
// process, since it also changes how the process allocates.
class MemoryKeeper {
 public:
  explicit MemoryKeeper(asio::io_context& io);

 private:
  void look_after(Duration time);

  net::Timer timer_;
  std::size_t given_back_ = 0;  // Upper bound of the free bytes that the system already has.
};

}  // namespace ddp::server
