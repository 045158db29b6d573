#pragma once

#include <chrono>

namespace ddp {

// Monotonic time. Pure cores take a TimePoint as argument and never read a clock themselves.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = std::chrono::milliseconds;

}  // namespace ddp
