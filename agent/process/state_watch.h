#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace ddp::agent {

// Whether the kernel shows the process in uninterruptible sleep (state D): its first thread waits
// for a device or a file system, and not even SIGKILL ends it.
bool is_uninterruptible(pid_t pid);

// What the kernel holds the process in, to be appended to a sentence: "; it is in state D in
// fuse_wait (fuse_wait_answer < fuse_flush)". The kernel's functions are there where this process
// may read /proc/PID/wchan and /proc/PID/stack. Of the first thread that is in state D, or else of
// the main thread; empty if there is no such process.
std::string state_text(pid_t pid);

// Whether the process lives: it is there, and no zombie.
bool is_alive(pid_t pid);

// Finds processes that stay in state D: they were in it at every look for as long as `limit`.
class StateWatch {
 public:
  explicit StateWatch(Duration limit, std::function<bool(pid_t)> is_stuck = is_uninterruptible)
      : limit_(limit), is_stuck_(std::move(is_stuck)) {}

  // How often to look. Often enough to notice that a process that often waits for its disk works in
  // between.
  Duration period() const;
  // Those of `pids` that have now been in state D for the limit. Each is returned once, until it
  // has left that state. Processes that are not in `pids` are forgotten.
  std::vector<pid_t> look(TimePoint now, const std::vector<pid_t>& pids);

 private:
  Duration limit_;
  std::function<bool(pid_t)> is_stuck_;
  struct Seen {
    TimePoint first;
    bool told = false;
  };
  std::map<pid_t, Seen> seen_;
};

}  // namespace ddp::agent
