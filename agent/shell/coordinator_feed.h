#pragma once

#include <functional>
#include <string>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/unique_fd.h"

namespace ddp::agent {

// Where the coordinator is, for jobs whose coordinator moves from node to node: ddp-run writes a
// line "HOST PORT\n" into a pipe whenever that has changed. Lives on the thread of `io`. A line
// that cannot be read is skipped; the end of the pipe means that nothing changes any more.
class CoordinatorFeed {
 public:
  using MovedCallback = std::function<void(const std::string& host, int port)>;

  // `on_moved` comes from the event loop; of several lines that have come together, for the last.
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
