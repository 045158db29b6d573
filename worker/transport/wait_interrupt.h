#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/clock.h"

namespace ddp::transport {

// Lets a thread give up a wait before its deadline. While the object lives, waits of this thread
// for setting up links (tcp.h) end with kAborted soon after `given_up` returns true (until_look());
// if it also covers operations, so do waits for the other ranks in one. It is called only while the
// thread has nothing else to do. Of objects within each other, each one counts.
class WaitInterrupt {
 public:
  static constexpr Duration kLook{20};
  static constexpr Duration kLongestLook{500};

  enum class Covers { kSettingUp, kOperationsToo };
  explicit WaitInterrupt(std::function<bool()> given_up, Covers covers = Covers::kSettingUp)
      : given_up_(std::move(given_up)), covers_(covers), outer_(std::exchange(current(), this)) {}
  ~WaitInterrupt() { current() = outer_; }
  WaitInterrupt(const WaitInterrupt&) = delete;
  WaitInterrupt& operator=(const WaitInterrupt&) = delete;

  // How long a wait that began at `since` goes on until it asks again: a tenth of the time that it
  // has lasted, within limits. If many ranks wait long for each other, asking would keep their
  // machine busy.
  static Duration until_look(TimePoint since) {
    const auto waited = std::chrono::duration_cast<Duration>(Clock::now() - since);
    return std::clamp(waited / 10, kLook, kLongestLook);
  }
  // Whether this thread has one, and whether it is to give up.
  static bool set() { return current() != nullptr; }
  static bool raised() {
    return any([](const WaitInterrupt& each) { return each.given_up_(); });
  }
  // The same for a wait in an operation.
  static bool set_for_operations() {
    return any([](const WaitInterrupt& each) { return each.covers_ == Covers::kOperationsToo; });
  }
  static bool raised_in_operation() {
    return any([](const WaitInterrupt& each) {
      return each.covers_ == Covers::kOperationsToo && each.given_up_();
    });
  }

 private:
  template <typename Condition>
  static bool any(Condition holds) {
    for (const WaitInterrupt* each = current(); each != nullptr; each = each->outer_) {
      if (holds(*each)) return true;
    }
    return false;
  }
  static WaitInterrupt*& current() {
    static thread_local WaitInterrupt* interrupt = nullptr;
    return interrupt;
  }

  const std::function<bool()> given_up_;
  const Covers covers_;
  WaitInterrupt* const outer_;
};

}  // namespace ddp::transport
