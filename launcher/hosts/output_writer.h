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

// Writes to a descriptor that may block, such as a terminal, in a thread of its own, so that the
// event loop, on which the rendezvous may run, never blocks. The descriptor stays blocking, since
// other processes share it.
class OutputWriter {
 public:
  // When this much is queued, writers should wait for `on_room`.
  static constexpr std::size_t kFullBytes = 4u << 20;

  // `on_room` is called on the thread of `io` when a queue that was full has become empty.
  OutputWriter(asio::io_context& io, int fd, std::function<void()> on_room);
  // Writes what is still queued, however long that takes.
  ~OutputWriter();
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;

  // Queues bytes; the order of calls is kept, and the bytes of one call stay together. If the
  // reader is gone, they are lost.
  void write(std::string_view bytes);
  bool full() const;

  // Shows a status line (without a newline) below everything that is written, instead of the one
  // before; empty removes it. For terminals only; see terminal.h.
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
  std::string status_;       // Under mutex_: the status that should be shown.
  std::string drawn_;        // Under mutex_: the status that the thread has last drawn.
  // Used by the thread only.
  bool status_shown_ = false;
  bool line_begins_ = true;
  std::thread thread_;
};

}  // namespace ddp::hosts
