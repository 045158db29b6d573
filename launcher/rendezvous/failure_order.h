#pragma once

#include <cstddef>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::rendezvous {

// The failures of a round in the order in which they happened, as far as that is known. A failure
// that is reported late, because its worker took long to exit, still comes before the failures that
// it has caused. A pure value.
//
// Times from one node are compared directly. Between nodes, a failure's time is when its report was
// sent (node_clock.h), minus its age in the report. So clocks need not agree, but they must not
// jump. Failures with equal times stay in order of arrival.
class FailureOrder {
 public:
  // `failure` names its node; `told`: when its report was sent, in the coordinator's time. The
  // number of failures is bounded, in case an agent is faulty. Beyond the bound, secondary failures
  // are dropped first, then the latest ones.
  void add(wire::Failure failure, TimePoint told);
  // Drops what the agent of this node has reported, because it will report it again.
  void forget(int group_rank);
  void clear();

  const std::vector<wire::Failure>& all() const { return failures_; }
  bool empty() const { return failures_.empty(); }
  std::size_t size() const { return failures_.size(); }

 private:
  std::vector<wire::Failure> failures_;
  std::vector<TimePoint> when_;  // Of each.
};

}  // namespace ddp::rendezvous
