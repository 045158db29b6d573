#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "common/base/shared_text.h"
#include "worker/ddp/logical/logical_world.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// Averages numbers that every logical rank has. The bits are the same for any number of workers:
// those of an average over a group with one worker for each logical rank.
//
//   LogicalSum sum(world, group, count, at::kFloat);
//   for (Rank logical : this worker's, in order) { fill(sum.next()); sum.add(); }
//   const at::Tensor& average = sum.average("gradients");
//
// A worker adds up only what belongs together in the tree of the logical ranks: it keeps one
// partial sum for each subtree, at most log2(size) + 1 at a time. If a reduction over the group
// sums in logical order (LogicalWorld::reduces_in_order), the workers reduce the partial sums.
// Otherwise each worker gets all partial sums, piece by piece, and adds them up itself.
//
// A ring sums in an order of its own (collectives/choice.h), so the reduction is cut into pieces
// that are too small for a ring. DDP_ALGO=ring forces a ring all the same; then the bits depend on
// the number of workers.
//
// Used by one thread. The memory of the first partial sum is the group's (ProcessGroup::allocate)
// as far as there is room.
class LogicalSum {
 public:
  // `type` is kFloat or kDouble. Local.
  LogicalSum(const LogicalWorld& world, std::shared_ptr<ProcessGroup> group, std::size_t count,
             at::ScalarType type);

  // Where the numbers of this worker's next logical rank go: a flat tensor of `count` elements and
  // undefined content. The tensors of equal level() are the same one.
  const at::Tensor& next();
  std::size_t level() const { return partial_sums_; }
  // The numbers are in next()'s tensor now. Throws std::logic_error if called more often than this
  // worker has logical ranks.
  void add();

  // The average over all logical ranks, on every worker. The tensor is that of level 0 and holds
  // the average until the next sum begins. Collective; throws CollectiveError, or std::logic_error
  // if a logical rank of this worker is missing.
  const at::Tensor& average(const SharedText& tag);
  // Forgets what was added since the last average.
  void restart();

 private:
  void combine();
  void reduce_over_group(const SharedText& tag);
  void gather_and_combine(const SharedText& tag);
  void divide();
  std::byte* bytes_at(std::size_t level, std::size_t element) const;

  const LogicalWorld world_;
  std::shared_ptr<ProcessGroup> group_;
  const std::size_t count_;
  const at::ScalarType scalar_type_;
  const DType type_;
  std::vector<at::Tensor> levels_;
  std::vector<int> combines_;  // By own logical rank: how many nodes of the tree end with it.
  std::size_t added_ = 0;      // Own logical ranks.
  std::size_t partial_sums_ = 0;
  // For gathering.
  std::vector<RankRange> subtrees_;       // Of all workers.
  std::vector<std::size_t> subtrees_of_;  // By worker: how many.
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
};

}  // namespace ddp
