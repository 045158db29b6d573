#pragma once

#include <algorithm>
#include <chrono>

#include "common/base/clock.h"

namespace ddp {

// Now plus `timeout`; "for ever" of whatever size becomes a year, which the clock can still hold.
inline TimePoint deadline_after(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return Clock::now() + std::clamp(timeout, std::chrono::milliseconds(0), kLongest);
}

}  // namespace ddp
