#pragma once

#include <string>
#include <string_view>

namespace ddp::node {

// Prints a line on standard error that is not about a failure. Silent with LOGLEVEL=ERROR and
// above.
void print_notice(std::string_view text);

// Prints ddp-run's own lines while the job runs. A stopped terminal or a pipe that nobody reads
// must not block this process, because it may coordinate the job for all nodes. Bytes that the
// reader does not take yet are kept. For one thread.
class Notices {
 public:
  explicit Notices(int fd) : fd_(fd) {}

  // Prints one or more lines; the last newline may be missing. Short texts go out in one write, so
  // that they do not mix with other processes' output.
  void print(std::string_view text);
  // Erases the status line that a killed process has left on the terminal.
  void erase_status();
  // Waits until everything is written, the reader is gone, or a signal arrives, because the user
  // then wants the end.
  void flush();

 private:
  void write(bool wait);

  const int fd_;
  std::string waiting_;
};

}  // namespace ddp::node
