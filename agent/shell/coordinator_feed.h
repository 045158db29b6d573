#pragma once

#include <functional>
#include <string>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/unique_fd.h"

namespace ddp::agent {

// Tells where the coordinator is, in jobs whose coordinator moves from node to node. ddp-run writes
// a line "HOST PORT\n" into a pipe whenever the coordinator has moved. Malformed lines are skipped.
// The end of the pipe means that it will not move again. Lives on the thread of `io`.
class CoordinatorFeed {
 public:
  using MovedCallback = std::function<void(const std::string& host, int port)>;

  // `on_moved` is called from the event loop. If several lines come together, only for the last
  // one.
  CoordinatorFeed(asio::io_context& io, UniqueFd fd, MovedCallback on_moved);

 private:
  void wait();
  void read();
  void take_lines();

  asio::posix::stream_descriptor pipe_;
  std::string text_;
  MovedCallback on_moved_;
};

}  // namespace ddp::agent
