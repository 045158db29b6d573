#pragma once

#include "common/base/ids.h"
#include "worker/collectives/tree_order.h"

namespace ddp {

// Says which worker takes which logical ranks, for a training that is defined for `size` logical
// ranks and runs on any number of workers. What depends on a rank (its share of the batch, its
// random numbers, its batch statistics) belongs to the logical rank, and sums over the ranks follow
// the tree of the logical ranks (collectives/tree_order.h), so results do not depend on the number
// of workers.
//
// Each worker gets a contiguous block of logical ranks. Blocks are as equal as possible; the first
// workers have one more. A value type without communication: all workers construct the same.
class LogicalWorld {
 public:
  // Throws std::invalid_argument, naming both numbers, if there are more workers than logical
  // ranks, since every worker needs one.
  LogicalWorld(int size, Rank worker, int workers);

  int size() const { return size_; }
  int workers() const { return workers_; }
  RankRange own() const { return of(worker_); }
  RankRange of(Rank worker) const;

  // The smallest set of subtrees of the logical ranks' tree that make up a worker's block, in rank
  // order.
  RankRanges subtrees(Rank worker) const;
  // Whether every block is one subtree, and a group of the workers combines their values just as
  // the logical ranks' tree does: then one reduction over the group sums in logical order.
  bool reduces_in_order() const;

 private:
  bool in_order(RankRange logical, RankRange workers) const;

  int size_;
  Rank worker_;
  int workers_;
};

}  // namespace ddp
