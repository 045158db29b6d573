#pragma once

#include <algorithm>
#include <chrono>

#include "common/base/clock.h"

namespace ddp {

// Now plus `timeout`. Longer timeouts than a year become a year, so that the clock cannot overflow.
inline TimePoint deadline_after(Duration timeout) {
  constexpr Duration kLongest = std::chrono::hours(24 * 365);
  return Clock::now() + std::clamp(timeout, Duration(0), kLongest);
}

// The timeout for poll(), rounded up; at most a minute, so the caller must look again.
inline int milliseconds_until(TimePoint deadline) {
  const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
  return static_cast<int>(std::clamp<Duration::rep>(left.count(), 0, 60'000));
}

}  // namespace ddp
