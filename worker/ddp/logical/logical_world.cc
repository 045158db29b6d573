#include "worker/ddp/logical/logical_world.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "common/base/check.h"

namespace ddp {

LogicalWorld::LogicalWorld(int size, Rank worker, int workers)
    : size_(size), worker_(worker), workers_(workers) {
  DDP_CHECK(worker >= 0 && worker < workers, "worker {} of {}", worker, workers);
  if (workers <= size) return;
  throw std::invalid_argument(
      fmt::format("a logical world of {} ranks cannot be dealt to {} workers: every worker needs a "
                  "logical rank, so expected at most {} workers",
                  size, workers, size));
}

RankRange LogicalWorld::of(Rank worker) const {
  const int share = size_ / workers_;
  const int with_one_more = size_ % workers_;
  const int begin = worker * share + std::min(worker, with_one_more);
  return {begin, begin + share + (worker < with_one_more ? 1 : 0)};
}

RankRanges LogicalWorld::subtrees(Rank worker) const {
  const RankRange block = of(worker);
  return subtrees_of(block.begin, block.end, size_);
}

bool LogicalWorld::reduces_in_order() const { return in_order({0, size_}, {0, workers_}); }

bool LogicalWorld::in_order(RankRange logical, RankRange workers) const {
  if (workers.size() == 1) return true;  // `logical` is a subtree, and the worker's block.
  const int middle = tree_middle(logical.begin, logical.end);
  const int middle_worker = tree_middle(workers.begin, workers.end);
  return of(middle_worker).begin == middle &&
         in_order({logical.begin, middle}, {workers.begin, middle_worker}) &&
         in_order({middle, logical.end}, {middle_worker, workers.end});
}

}  // namespace ddp
