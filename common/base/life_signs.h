#pragma once

#include <sys/types.h>

#include <string>

#include "common/base/clock.h"

namespace ddp {

// Tells a process that works, or waits and looks again, from one that hangs or was stopped: it has
// used processor time, made a system call that moves bytes, or slept and woken up.
class LifeSigns {
 public:
  // How often check() is to be called.
  static constexpr Duration kLook{1'000};

  // `limit`: how long a process may show nothing. Rounded up to whole looks.
  LifeSigns(pid_t pid, Duration limit, Duration look = kLook);

  // Call every `look`. False once as many calls in a row as fit into the limit have found nothing
  // new: calls and not time, so that a machine that was suspended has not been silent. True for a
  // process that is gone.
  bool check();

 private:
  pid_t pid_;
  int looks_;  // That fit into the limit.
  int looks_left_;
  std::string last_;
};

}  // namespace ddp
