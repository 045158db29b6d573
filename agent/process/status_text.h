#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/wire/control_messages.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::agent {

// The line at the bottom of a terminal: "round 1 (restart 1 of 3) | 2 nodes | 8 workers | step 120
// | 35.2 steps/s | loss 0.2345". Steps and loss are those of this node's workers that report them.
// Pure.
class StatusText {
 public:
  void begin_round(const wire::RoundStart& round);
  void on_progress(TimePoint now, int local_rank, const wire::Progress& progress);
  // Empty before the first round.
  std::string text(TimePoint now) const;

 private:
  // Over which the rate is taken.
  static constexpr Duration kRateSpan{5'000};

  double rate(TimePoint now) const;

  std::string head_;
  std::int64_t step_ = -1;
  std::deque<std::pair<TimePoint, std::int64_t>> steps_;  // When a step was first seen.
  std::map<int, double> losses_;                          // The newest of each worker.
};

}  // namespace ddp::agent
