#pragma once

#include <cstdint>

namespace ddp {

// How often ElasticState::commit_if_due() commits. The first step of each round is committed in any
// case.
struct CommitPace {
  // Steps; 0: chosen by measurement, so that commits take at most `share` of the time.
  std::int64_t every = 0;
  double share = 0.01;  // Greater than 0 and less than 1.
};

}  // namespace ddp
