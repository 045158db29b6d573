#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include "common/base/result.h"
#include "common/net/timer.h"

// The agent's side of torch.distributed.elastic.timer's FileTimerClient: workers write lines into a
// FIFO, {"version":1,"pid":P,"scope_id":S,"expiration_time":T,"signal":N}, T in seconds since the
// epoch; a negative T cancels the timer. When the time is up, the process gets the signal.
// torchrun's agent then exits and ends the node; ours reports the worker's failure like any other.
namespace ddp::agent {

// A timer that has expired.
struct Expired {
  pid_t pid = 0;
  int signal = 0;
  std::string scope;
};

// The timers that run. Pure: times are arguments, in seconds of the monotonic clock.
class TimerTable {
 public:
  // Takes one line, without its newline. kProtocol for a malformed line. `ahead`: how far the wall
  // clock, by which the worker has set the timer, is ahead of the monotonic one at this moment. If
  // the wall clock is set later, the timer does not change.
  Result<void> take_line(std::string_view line, double ahead = 0);
  // Removes all timers of each process that has an expired one, and returns the first expired timer
  // that has a signal. Processes without such a timer are not returned.
  std::vector<Expired> take_expired(double now);
  // When the next timer expires; empty while none runs.
  std::optional<double> next() const;
  std::size_t size() const { return timers_.size(); }

 private:
  struct Timer {
    double expires = 0;
    int signal = 0;
  };
  std::map<std::pair<pid_t, std::string>, Timer> timers_;
};

// The path of the FIFO: TORCHELASTIC_TIMER_FILE or, if that is unset, a file in `folder`. Empty
// unless TORCHELASTIC_ENABLE_FILE_TIMER is 1.
std::optional<std::string> timer_file_wanted(
    const std::function<const char*(const char*)>& environment, const std::string& folder);

// Reads timers from the FIFO. Lives on the thread of `io`. Makes the FIFO, and removes it in the
// end.
class FileTimers {
 public:
  // Replaces an older FIFO. kIo if the FIFO cannot be made, or if the path is something else.
  static Result<FileTimers> listen(asio::io_context& io, const std::string& path,
                                   std::function<void(const Expired&)> on_expired);
  FileTimers(FileTimers&&) noexcept;
  FileTimers& operator=(FileTimers&&) noexcept;
  ~FileTimers();

 private:
  struct State;
  explicit FileTimers(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// 0 if there is no such process.
pid_t parent_of(pid_t pid);

// Sends the signal to `pid` if it is a descendant of this process. False if it is not.
bool signal_descendant(pid_t pid, int signal);

}  // namespace ddp::agent
