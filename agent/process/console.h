#pragma once

#include <cstddef>
#include <cstdint>
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
#include "common/net/timer.h"

namespace ddp::agent {

// One of this process's inherited outputs (standard output or error), written without ever waiting
// for its reader: what does not fit is queued. The descriptor is shared with other processes, so
// its flags stay as they are; lines of up to PIPE_BUF bytes go into a pipe whole, whoever else
// writes to it. Lives on the thread of `io`.
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

  // From now on a reader that takes nothing for `limit` while the console is full holds nobody up:
  // what is written is left out, until it has read all that waits; then a line says how much it
  // was, and `advice` where it can be found. 0: it holds writers up for ever.
  void set_stall_limit(Duration limit, std::string advice);

  // Output of workers. Writes the bytes, in as few system calls as the reader allows; queues what
  // is left. Takes everything, also when full().
  void write(std::string_view bytes);
  // A line of our own, without its newline. Never left out.
  void print(std::string_view line);
  bool full() const { return queued_bytes_ > kQueueLimitBytes && !leaving_out_; }
  // Calls back once, when full() does not hold any more. If it holds until the end, never.
  void when_not_full(std::function<void()> callback);

  // Shows a line without a newline below everything that is written, in place of the one before;
  // empty: none. Only on terminals, cut to their width, and not while the last line written is
  // unfinished.
  void show_status(std::string_view text);

  // Whether everything written has left this process, or never will.
  bool empty() const { return queue_.empty(); }
  // When the reader last took something, if something waits for it.
  TimePoint last_taken() const { return last_taken_; }
  // Blocks until the queue is empty, at most `limit`. False if bytes are left.
  bool flush(Duration limit);

  bool is_terminal() const { return is_terminal_; }

 private:
  explicit Console(asio::io_context& io) : io_(io), stall_timer_(io) {}
  void put(std::string_view bytes);
  // Whether the write may go on; false if the bytes that are left have to wait.
  bool write_some(std::string_view& bytes);
  std::size_t piece_size(std::string_view bytes) const;
  void wait_until_writable();
  void write_queue();
  void not_full();
  void watch_stall();
  void end_leaving_out();
  void append_status(std::string& bytes) const;
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
  std::size_t front_taken_ = 0;   // Of queue_.front().
  std::size_t queued_bytes_ = 0;  // Invariant: the sum of the sizes in queue_ less front_taken_.
  std::vector<std::function<void()>> not_full_callbacks_;

  Duration stall_limit_{0};
  std::string stall_advice_;
  net::Timer stall_timer_;
  bool stall_watched_ = false;
  TimePoint last_taken_ = Clock::now();
  bool leaving_out_ = false;
  std::uint64_t lines_left_out_ = 0;
  std::uint64_t bytes_left_out_ = 0;

  bool line_begins_ = true;  // What was written ends with a newline, or with the status.
  std::string status_;
  bool status_shown_ = false;
  std::string framed_;  // Bytes to be written and the status around them.
};

}  // namespace ddp::agent
