#pragma once

#include <functional>
#include <utility>

#include "common/base/clock.h"

namespace ddp::transport {

// Lets a thread give up setting up links (tcp.h) before the deadline. While the object lives, waits
// of this thread in there end with kAborted within kLook after `given_up` returns true. At most one
// object per thread at a time.
class WaitInterrupt {
 public:
  static constexpr Duration kLook{20};

  explicit WaitInterrupt(std::function<bool()> given_up) : given_up_(std::move(given_up)) {
    current() = this;
  }
  ~WaitInterrupt() { current() = nullptr; }
  WaitInterrupt(const WaitInterrupt&) = delete;
  WaitInterrupt& operator=(const WaitInterrupt&) = delete;

  // Whether this thread has one, and whether it is to give up.
  static bool set() { return current() != nullptr; }
  static bool raised() { return set() && current()->given_up_(); }

 private:
  static WaitInterrupt*& current() {
    static thread_local WaitInterrupt* interrupt = nullptr;
    return interrupt;
  }

  std::function<bool()> given_up_;
};

}  // namespace ddp::transport
