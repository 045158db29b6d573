#pragma once

#include <sys/types.h>

#include <string>

#include "common/base/clock.h"

namespace ddp {

// Tells a process that works, or that waits and wakes up now and then, from one that hangs or was
// stopped. Signs of life are processor time, system calls that move bytes, and waking up from
// sleep.
class LifeSigns {
 public:
  // How often check() is to be called.
  static constexpr Duration kLook{1'000};

  // `limit`: how long a process may show no sign. Rounded up to whole looks.
  LifeSigns(pid_t pid, Duration limit, Duration look = kLook);

  // Call every `look`. False once as many calls in a row as fit into the limit have found no sign.
  // Calls are counted and not time, so that a suspended machine does not count as silent. True for
  // a process that is gone.
  bool check();

 private:
  pid_t pid_;
  int looks_;  // How many looks fit into the limit.
  int looks_left_;
  std::string last_;
};

}  // namespace ddp
