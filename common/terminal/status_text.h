#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/ids.h"

namespace ddp::terminal {

struct RoundSize {
  Round round = kNoRound;
  int restarts = 0;
  int max_restarts = 0;
  int nodes = 0;
  int workers = 0;
};

// The line at the bottom of a terminal: "round 1 (restart 1 of 3) | 2 nodes | 8 workers | step
// 120/828 | 35.2 steps/s | ETA 0:21 | loss 0.2345". Steps and loss come from the sources (workers
// or nodes) that report them. Pure.
class StatusText {
 public:
  void begin_round(const RoundSize& round);
  // total_steps: of the whole training; 0: unknown.
  void on_progress(TimePoint now, int source, std::int64_t step, double loss,
                   std::int64_t total_steps);
  // Empty before the first round.
  std::string text(TimePoint now) const;

 private:
  // The time over which the rate is measured.
  static constexpr Duration kRateSpan{5'000};

  double rate(TimePoint now) const;

  std::string head_;
  std::int64_t step_ = -1;
  std::int64_t total_steps_ = 0;
  std::deque<std::pair<TimePoint, std::int64_t>> steps_;  // When a step was first seen.
  std::map<int, double> losses_;                          // The newest of each source.
};

}  // namespace ddp::terminal
