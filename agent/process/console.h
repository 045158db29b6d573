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

#include "agent/process/file_writer.h"
#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/net/timer.h"

namespace ddp::agent {

// One of this process's inherited outputs (standard output or error). Writing never waits for the
// reader, or for the disk of a file: bytes that do not fit are queued. The descriptor is shared
// with other processes, so its flags are not changed. Lines of up to PIPE_BUF bytes go into a pipe
// as a whole, even if others write to it. Lives on the thread of `io`.
//
// A reader that is gone (EPIPE and the like) is not an error: later output is dropped. The process
// must ignore SIGPIPE.
class Console : public std::enable_shared_from_this<Console> {
 public:
  // Writers must stop reading their sources while more than this is queued.
  static constexpr std::size_t kQueueLimitBytes = 1u << 20;
  // For set_stall_limit(): how long a reader may block the workers.
  static constexpr Duration kStallLimit{30'000};

  static std::shared_ptr<Console> open(asio::io_context& io, int fd);
  // Standard output and standard error. Both are one object if they are the same pipe or terminal,
  // so that lines do not mix.
  struct Pair {
    std::shared_ptr<Console> out;
    std::shared_ptr<Console> err;
  };
  static Pair open_standard(asio::io_context& io);

  // From now on a reader that takes nothing for `limit` while the console is full does not block
  // the writers: output is left out until the reader has read all that is queued. Then a line says
  // how much was left out, followed by `advice`, which says where to find it. 0: the reader may
  // block the writers for ever.
  void set_stall_limit(Duration limit, std::string advice);

  // For output of workers. Writes the bytes in as few system calls as the reader allows, and queues
  // the rest. Takes everything, even when full().
  void write(std::string_view bytes);
  // For lines of our own, without the newline. They are never left out.
  void print(std::string_view line);
  bool full() const { return is_behind() && !leaving_out_; }
  // Calls back once, when full() no longer holds. Never, if full() holds until the end.
  void when_not_full(std::function<void()> callback);

  // Shows a line (without a newline) below all output, in place of the status before; empty: none.
  // Does so only on terminals, cut to their width, and not while the last line of output is
  // unfinished.
  void show_status(std::string_view text);

  // Whether everything written has left this process, or never will.
  bool empty() const { return queue_.empty() && (!files_ || files_->empty()); }
  // When the reader last took something. Valid while something is queued.
  TimePoint last_taken() const { return files_ ? files_->last_taken() : last_taken_; }

  bool is_terminal() const { return is_terminal_; }

 private:
  explicit Console(asio::io_context& io) : io_(io), stall_timer_(io) {}
  void open_file();
  void on_file_taken();
  bool is_behind() const { return queued_bytes_ > kQueueLimitBytes || (files_ && files_->full()); }
  void put(std::string_view bytes);
  // False if the remaining bytes must wait.
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
  UniqueFd own_;  // Our own non-blocking open file description; empty if we cannot get one.
  int fd_ = -1;   // Where to write: own_ or the inherited descriptor.
  bool may_block_ = true;  // fd_ blocks when full: call poll first and write little at a time.
  std::optional<FileWriter> files_;  // Of a file, which then gets all bytes at once.
  WrittenFile file_;
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
