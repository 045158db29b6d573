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
// epoch; a negative T takes the timer back. A process whose time is up gets the signal. torchrun's
// agent ends with it and takes the node along; ours reports the worker's failure like any other.
namespace ddp::agent {

// A timer that is up.
struct Expired {
  pid_t pid = 0;
  int signal = 0;
  std::string scope;
};

// Which timers run. Pure: times are given, in seconds since the epoch.
class TimerTable {
 public:
  // One line without its end. kProtocol for what is none.
  Result<void> take_line(std::string_view line);
  // Takes out all timers of each process that has one which is up; of those the first that has a
  // signal counts. Processes whose timers have none are left alone.
  std::vector<Expired> take_expired(double now);
  // When the next one is up; nothing while none runs.
  std::optional<double> next() const;
  std::size_t size() const { return timers_.size(); }

 private:
  struct Timer {
    double expires = 0;
    int signal = 0;
  };
  std::map<std::pair<pid_t, std::string>, Timer> timers_;
};

// Where the FIFO is to be: nothing unless TORCHELASTIC_ENABLE_FILE_TIMER is 1;
// TORCHELASTIC_TIMER_FILE or, without it, a file in `folder`.
std::optional<std::string> timer_file_wanted(
    const std::function<const char*(const char*)>& environment, const std::string& folder);

// The FIFO and what comes through it. Lives on the thread of `io`. Makes the file and removes it in
// the end.
class FileTimers {
 public:
  // In place of an older FIFO; kIo if the file cannot be made, or if there is something else.
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

// Sends the signal to a process that descends from this one; false if there is none of this number.
bool signal_descendant(pid_t pid, int signal);

}  // namespace ddp::agent
