#pragma once

#include <algorithm>
#include <chrono>

#include "common/base/clock.h"

namespace ddp::store {

// Now plus `timeout`. Longer timeouts than a year become a year, so that the clock cannot overflow.
inline TimePoint deadline_after(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return Clock::now() + std::clamp(timeout, std::chrono::milliseconds(0), kLongest);
}

}  // namespace ddp::store
