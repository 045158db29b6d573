#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker/runtime/group.h"

namespace ddp::python {

// The group of a round as Python sees it: over which ranks exchange their state, whatever backend
// the program trains with. Released at the end of the round.
class RoundGroup {
 public:
  explicit RoundGroup(std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)),
        rank_(group_->rank()),
        size_(group_->size()),
        round_(group_->round()) {}

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  Round round() const { return round_; }
  // Null once the round is over.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  Outcome failure() const { return group_ ? group_->failure() : Outcome(); }
  void release() { group_.reset(); }

 private:
  std::shared_ptr<ProcessGroup> group_;
  const Rank rank_;
  const int size_;
  const Round round_;
};

}  // namespace ddp::python
