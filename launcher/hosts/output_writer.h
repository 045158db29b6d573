#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <asio/io_context.hpp>

namespace ddp::hosts {

// Writes to a descriptor that may block, such as a terminal, in a thread of its own: the event
// loop, on which the rendezvous may run, goes on. The descriptor stays as it is, since others share
// it.
class OutputWriter {
 public:
  // Beyond this the one who writes should wait for `on_room`.
  static constexpr std::size_t kFullBytes = 4u << 20;

  // `on_room` is called on the thread of `io` once the queue, which was full, is empty.
  OutputWriter(asio::io_context& io, int fd, std::function<void()> on_room);
  // Writes what is queued, for as long as that takes.
  ~OutputWriter();
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;

  // In this order, and nothing of this process between the bytes of one call. A reader that has
  // gone loses them.
  void write(std::string_view bytes);
  bool full() const;

  // Keeps a line without a newline below everything that is written, in place of the one before,
  // as terminal.h's functions show it; empty: none. For terminals.
  void show_status(std::string_view text);

 private:
  void run();
  std::string framed(std::string bytes, const std::string& status);

  asio::io_context& io_;
  int fd_;
  std::function<void()> on_room_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // For what is posted.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string queue_;        // Under mutex_.
  std::size_t writing_ = 0;  // Under mutex_: bytes that the thread has taken.
  bool was_full_ = false;    // Under mutex_.
  bool ending_ = false;      // Under mutex_.
  std::string status_;       // Under mutex_: what is to be seen,
  std::string drawn_;        // under mutex_: and what the thread has last dealt with.
  // Of the thread.
  bool status_shown_ = false;
  bool line_begins_ = true;
  std::thread thread_;
};

}  // namespace ddp::hosts
