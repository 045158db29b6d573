#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"

namespace ddp::agent {

// One of this process's inherited outputs (standard output or error), written without ever waiting
// for its reader: what does not fit is queued. The descriptor is shared with other processes, so
// its flags stay as they are. Lives on the thread of `io`.
//
// A reader that is gone (EPIPE and the like) is not an error: what is written after that is
// dropped. The process must ignore SIGPIPE.
class Console : public std::enable_shared_from_this<Console> {
 public:
  // Writers stop reading their sources while more than this waits.
  static constexpr std::size_t kQueueLimitBytes = 1u << 20;

  static std::shared_ptr<Console> open(asio::io_context& io, int fd);
  // Standard output and standard error; one object if both are the same pipe or terminal, so that
  // no line of the one is cut by the other.
  struct Pair {
    std::shared_ptr<Console> out;
    std::shared_ptr<Console> err;
  };
  static Pair open_standard(asio::io_context& io);

  // Writes the bytes, in one system call if the reader keeps up; otherwise queues what is left.
  // Takes everything, also when full().
  void write(std::string_view bytes);
  bool full() const { return queued_bytes_ > kQueueLimitBytes; }
  // Calls back once, when full() does not hold any more. If it holds until the end, never.
  void when_not_full(std::function<void()> callback);

  // Blocks until the queue is empty, at most `limit`. False if bytes are left.
  bool flush(Duration limit);

  bool is_terminal() const { return is_terminal_; }

 private:
  explicit Console(asio::io_context& io) : io_(io) {}
  // Whether the write may go on; false if the bytes that are left have to wait.
  bool write_some(std::string_view& bytes);
  void wait_until_writable();
  void write_queue();
  void give_up();

  asio::io_context& io_;
  UniqueFd own_;           // A description of our own, non-blocking; empty where none can be had.
  int fd_ = -1;            // What is written to: own_ or the inherited descriptor.
  bool may_block_ = true;  // fd_ blocks when full: ask poll first, write little at a time.
  bool is_file_ = false;
  bool is_socket_ = false;
  bool is_terminal_ = false;
  bool dead_ = false;
  bool waiting_ = false;
  std::optional<asio::posix::stream_descriptor> waiter_;
  std::deque<std::string> queue_;
  std::size_t queued_bytes_ = 0;  // Invariant: the sum of the sizes in queue_.
  std::vector<std::function<void()>> not_full_callbacks_;
};

}  // namespace ddp::agent
