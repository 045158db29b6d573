#pragma once

#include <chrono>

#include "common/base/unique_fd.h"

namespace ddp::runtime {

// A descriptor that becomes readable some time after it was set (timerfd), and stays so until it is
// cleared. Used under a lock of its owner's, except for fd().
class Alarm {
 public:
  Alarm();

  // delay: positive. Does nothing if it is set already.
  void set(std::chrono::nanoseconds delay);
  void clear();

  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  bool is_set_ = false;
};

}  // namespace ddp::runtime
