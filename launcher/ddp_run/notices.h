#pragma once

#include <string>
#include <string_view>

namespace ddp::run {

// A line for standard error that is not about what ends the job: none of LOGLEVEL=ERROR and above.
void print_notice(std::string_view text);

// What ddp-run itself has to say while the job runs. A terminal that was stopped, or a pipe that
// nobody reads, does not hold it up: it may be the one that coordinates the job for all nodes. What
// such a reader does not take is kept until it does. One thread.
class Notices {
 public:
  explicit Notices(int fd) : fd_(fd) {}

  // A line or several; the last newline may be left out. Written at once, in one write where they
  // are short, so that they do not mix with what others print.
  void print(std::string_view text);
  // Removes what a status line has left on a terminal when its process was killed.
  void erase_status();
  // Waits until everything is written, nobody can ever read it, or a signal is handled: somebody
  // wants the end.
  void flush();

 private:
  void write(bool wait);

  const int fd_;
  std::string waiting_;
};

}  // namespace ddp::run
