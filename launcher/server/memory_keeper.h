#pragma once

#include <cstddef>

#include <asio/io_context.hpp>

#include "common/base/clock.h"
#include "common/net/timer.h"

namespace ddp::server {

// Sees that the daemon's memory follows what it holds. The C library keeps what is freed, and would
// keep what the largest crowd of clients ever needed. On the thread of `io`; one a process, since
// it also changes how that process allocates.
class MemoryKeeper {
 public:
  explicit MemoryKeeper(asio::io_context& io);

 private:
  void look_after(Duration time);

  net::Timer timer_;
  std::size_t given_back_ = 0;  // Of the free bytes, those that the system has already, at most.
};

}  // namespace ddp::server
