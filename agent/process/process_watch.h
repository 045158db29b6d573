#pragma once

#include <functional>
#include <memory>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"

namespace ddp::agent {

// Tells when a process has ended, through its pidfd. The process need not be a child of this one.
// Processes that end together are told in the order in which they ended; the order of SIGCHLD and
// waitid() would be that in which they were started. Lives on the thread of `io`.
class ProcessWatch : public std::enable_shared_from_this<ProcessWatch> {
 public:
  // How long to wait for a tracer to let go of a process that has ended.
  static constexpr Duration kTracerPause{10};

  // Calls `on_end` once the process has ended, not from inside this call. It returns false if the
  // status of the process cannot be taken yet: a tracer (gdb, strace, StackDump's helper) may hold
  // it. It is then called again after kTracerPause. Never calls after close(), or once the object
  // is destroyed; both may happen inside `on_end`.
  static std::shared_ptr<ProcessWatch> start(asio::io_context& io, UniqueFd pidfd,
                                             std::function<bool()> on_end);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // Not after close().
  bool has_ended();
  void close();

 private:
  ProcessWatch(asio::io_context& io, UniqueFd pidfd, std::function<bool()> on_end);
  void wait();
  void tell();

  asio::posix::stream_descriptor pidfd_;
  net::Timer again_;
  std::function<bool()> on_end_;
};

}  // namespace ddp::agent
