#pragma once

#include <functional>

#include "common/base/clock.h"

namespace ddp {

// Lets a thread give up a wait before its deadline. While the object lives, waits of this thread
// for keys of a store and for setting up links end with kAborted soon after `given_up` returns true
// (until_look()); if it also covers operations, so do waits for the other ranks in one. It is
// called only while the thread has nothing else to do. Of objects within each other, each one
// counts.
class WaitInterrupt {
 public:
  static constexpr Duration kLook{20};
  static constexpr Duration kLongestLook{500};

  enum class Covers { kSettingUp, kOperationsToo };
  explicit WaitInterrupt(std::function<bool()> given_up, Covers covers = Covers::kSettingUp);
  ~WaitInterrupt();
  WaitInterrupt(const WaitInterrupt&) = delete;
  WaitInterrupt& operator=(const WaitInterrupt&) = delete;

  // Whether this thread has one, and whether it is to give up.
  static bool set();
  static bool raised();
  // The same for a wait in an operation.
  static bool set_for_operations();
  static bool raised_in_operation();

  // How long a wait that began at `since` goes on until it asks again: a quarter of the time that
  // it has lasted, within limits. If many ranks wait long for each other, asking would keep their
  // machine busy.
  static Duration until_look(TimePoint since);
  // When a wait that began at `since` and ends at `deadline` must ask next.
  static TimePoint next_look(TimePoint since, TimePoint deadline);

 private:
  template <typename Condition>
  static bool any(Condition holds);

  const std::function<bool()> given_up_;
  const Covers covers_;
  WaitInterrupt* const outer_;
};

}  // namespace ddp
