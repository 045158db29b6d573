#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

// The second way to train on several ranks: no hooks, one fused reduction at the optimizer's step.
// It does not overlap with backward, and it knows nothing of the module, so any loop works with it.
namespace ddp {

// Averages .grad over the ranks in one all_reduce for each element type, and keeps its buffers for
// the next time. Every call is collective, with parameters of the same number, shapes and types in
// the same order on all ranks; those that require no gradient or appear twice are passed over. A
// gradient that is undefined counts as zero, and where it is so on every rank it stays undefined.
//
// Throws CollectiveError; or std::invalid_argument for a gradient that cannot be reduced, after
// aborting the group.
class GradientReducer {
 public:
  void reduce(const std::vector<at::Tensor>& parameters, ProcessGroup& group);

 private:
  // The parameters of one element type and their flat buffer: gradients one after the other, then
  // for each parameter a number that is 1 where it has a gradient. The average of that number is
  // above 0 where any rank has one.
  struct Part {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> slots;
    at::Tensor flat;
    at::Tensor flags;  // The end of flat.
    WorkPtr work;
  };

  void plan(const std::vector<at::Tensor>& trainable, ProcessGroup& group);
  static void pack(Part& part);
  static void unpack(const Part& part);

  std::vector<at::Tensor> planned_;
  const ProcessGroup* planned_for_ = nullptr;  // Whose memory the buffers are, at best.
  std::vector<Part> parts_;
};

// As GradientReducer::reduce, with buffers for this call only.
void reduce_gradients(const std::vector<at::Tensor>& parameters, ProcessGroup& group);

// Checks that the module is the same on all ranks, as DistributedDataParallel does, then gives
// every rank rank 0's parameters and buffers. Collective. Throws std::invalid_argument naming the
// first difference, or CollectiveError.
void broadcast_parameters(const torch::nn::Module& module, ProcessGroup& group);

// Wraps an optimizer so that its step uses averaged gradients. The optimizer must outlive it and
// stays usable by itself: its hyper-parameters and state are where they were.
//
//   ddp::broadcast_parameters(*model, *group);
//   torch::optim::SGD sgd(model->parameters(), options);
//   ddp::DistributedOptimizer optimizer(sgd, group);
//   optimizer.zero_grad(); loss.backward(); optimizer.step();
class DistributedOptimizer {
 public:
  DistributedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<ProcessGroup> group);

  // Collective: averages the gradients of all parameter groups, then steps.
  void step();
  // Drops the gradients, or zeroes them where they are. Dropping is faster, and it makes a step
  // independent of the one before it to the sign of a zero: autograd adds to what it finds.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer() { return optimizer_; }

 private:
  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<ProcessGroup> group_;
  GradientReducer reducer_;
};

}  // namespace ddp
