#pragma once

#include <optional>

#include "common/base/clock.h"

namespace ddp::rendezvous {

// What is known of the node of a lost coordinator, which has not come to the new one.
struct Silence {
  TimePoint since;                          // When it was last heard.
  std::optional<TimePoint> lost_from = {};  // Its ddp-run has ended, unless it is heard by then.
};

}  // namespace ddp::rendezvous
