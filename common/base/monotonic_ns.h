#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/clock.h"

namespace ddp {

// As CLOCK_MONOTONIC counts it: the same in all processes of a machine, and what shared memory and
// messages hold.
inline std::int64_t monotonic_ns(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace ddp
