#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "agent/process/stacks.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"

namespace ddp::agent {

// Runs ask_for_stacks() and write_stacks() in a process of its own, so that neither a thread that
// hangs in the kernel nor a broken program file can harm this process. That process is a child of
// this one. Whoever reaps orphans must reap it, too. Lives on the thread of `io`.
class StackDump : public std::enable_shared_from_this<StackDump> {
 public:
  static constexpr Duration kLimit{10'000};
  static constexpr std::size_t kMaxBytes = 256 * 1024;

  // Calls back once, not from inside this call, with whole lines of text. At kLimit or kMaxBytes
  // the text ends with a line that says so. Never calls back if the object is destroyed before.
  static std::shared_ptr<StackDump> start(asio::io_context& io, const StackSource& source,
                                          std::function<void(std::string text)> done);
  ~StackDump();
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;

 private:
  StackDump(asio::io_context& io, std::function<void(std::string)> done);
  void run(const StackSource& source);
  void wait();
  void on_readable();
  // `why`: why the text is not complete; empty if it is.
  void finish(const std::string& why);

  asio::io_context& io_;
  std::function<void(std::string)> done_;
  asio::posix::stream_descriptor pipe_;
  // A pidfd, because its pid may belong to another process by the time it is killed.
  UniqueFd helper_;
  net::Timer timer_;
  std::string text_;
};

}  // namespace ddp::agent
