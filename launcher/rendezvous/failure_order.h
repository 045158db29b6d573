#pragma once

#include <cstddef>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/rendezvous_messages.h"

namespace ddp::rendezvous {

// The failures of a round in the order in which they happened, as far as that is known: one that is
// heard of late, because its worker took long to exit, goes before those that it has caused. A pure
// value.
//
// Times of one node are compared as they are. Between nodes a failure happened its age before it
// was heard of: that relies on messages that come within milliseconds and on clocks that do not
// jump, not on clocks that agree. Failures that happened at the same time stay in order of arrival.
class FailureOrder {
 public:
  // `failure` says which node it is from. What a faulty agent can make the coordinator keep is
  // bounded: beyond that consequences of others go first, then what happened last.
  void add(wire::Failure failure, TimePoint heard);
  // What the agent of this node has told is void: it tells it anew.
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
