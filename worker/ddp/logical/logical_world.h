#pragma once

#include "common/base/ids.h"
#include "worker/collectives/tree_order.h"

namespace ddp {

// A training that is defined for `size` logical ranks and runs on however many workers there are:
// which worker takes which logical ranks. What depends on a rank (its share of the batch, its
// random numbers, its batch statistics) is the logical rank's, and sums over the ranks are taken
// along the tree of the logical ranks (collectives/tree_order.h), so results do not depend on the
// number of workers.
//
// Logical ranks are dealt in contiguous blocks, as equal as possible; the first workers have one
// more. A value type without communication: all workers construct it alike.
class LogicalWorld {
 public:
  // Throws std::invalid_argument, naming both numbers, if there are more workers than logical
  // ranks, since every worker needs one.
  LogicalWorld(int size, Rank worker, int workers);

  int size() const { return size_; }
  int workers() const { return workers_; }
  RankRange own() const { return of(worker_); }
  RankRange of(Rank worker) const;

  // The fewest subtrees of the logical ranks' tree that a worker's block is made of, in rank order.
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
