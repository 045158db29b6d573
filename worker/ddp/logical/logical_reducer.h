#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/logical/logical_world.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddp {

class GradientSlots;
struct ModuleState;

// Averages the gradients of logical ranks (LogicalWorld), of which a worker has one or more:
// training with them ends with the same bits for any number of workers, and when the number changes
// in mid-run. One step is
//
//   optimizer.zero_grad();
//   for (Rank logical = own.begin; logical < own.end; ++logical) {  // own: reducer.world().own()
//     // What a worker with this rank would do: its part of the batch, its random numbers
//     // (LogicalRanks), the buffers as they were before the step.
//     loss.backward();  // Several times, if gradients are accumulated.
//     reducer.add();
//   }
//   reducer.reduce();
//   optimizer.step();
//
// with the learning rate and the batches of a world of `logical_size` workers. The result is that
// of such a world: with as many workers it equals DistributedOptimizer's to the bit. Keep the
// buffers that logical rank 0 has after its forward.
//
// A parameter without a gradient counts as one whose gradient is zero; where no logical rank has
// one it stays undefined. A sparse gradient is made dense. Half types are added in float32 and
// rounded once.
//
// Memory: one set of gradients for each level of the partial sums (LogicalSum), not for each
// logical rank. That is one set with one logical rank per worker, and at most log2(logical_size) +
// 1 sets.
//
// Used by the training thread. In a new round, make another one over its group.
class LogicalReducer {
 public:
  // The parameters of the module that require a gradient; dense, in CPU memory, floating point.
  // Collective. Throws std::invalid_argument, on all workers, if the module or logical_size differs
  // between workers, a parameter is of another kind, or there are more workers than logical ranks.
  LogicalReducer(const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                 int logical_size);
  // The same for a module that is none of LibTorch's.
  LogicalReducer(const ModuleState& state, std::shared_ptr<ProcessGroup> group, int logical_size);
  ~LogicalReducer();
  LogicalReducer(const LogicalReducer&) = delete;
  LogicalReducer& operator=(const LogicalReducer&) = delete;

  const LogicalWorld& world() const { return world_; }

  // Takes the gradients of this worker's next logical rank: .grad is undefined afterwards. Local.
  // Throws std::logic_error after the last one. Throws std::invalid_argument, after aborting the
  // group, for a gradient that does not have its parameter's sizes.
  void add();
  // .grad becomes the average over all logical ranks, the same bits on all workers. It is in this
  // object's memory, which the next step's first add() overwrites. Collective. Throws
  // CollectiveError, or std::logic_error if a logical rank of this worker is missing.
  void reduce();
  // Forgets what was added since reduce(): for a step that is not finished.
  void restart();

 private:
  struct Sum;
  const std::vector<at::Tensor>& slots_at(Sum& sum, const at::Tensor& flat);
  void forget_used();

  const LogicalWorld world_;
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<GradientSlots> slots_;
  std::vector<Sum> sums_;
};

}  // namespace ddp
