#pragma once

#include <cstddef>
#include <memory>

#include <torch/optim/optimizer.h>

#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp {

// Updates parameters within backward: a bucket's as soon as its average has come, while gradients
// of others are still being computed and sent. PyTorch's _apply_optimizer_in_backward with DDP.
//
//   torch::optim::AdamW adam(net->parameters(), options);
//   ddp::DistributedDataParallel<Net> model(net, group);
//   ddp::OptimizerInBackward optimizer(adam, model);
//   ...
//   model.zero_grad(); loss(model(input)).backward();      // No step().
//
// Results are bit for bit those of a step() after backward. The optimizer must update each element
// by itself (not LBFGS). Checkpoints and schedules use it as before; a new learning rate holds from
// the next backward on. What needs all gradients before the step is impossible: clipping by their
// norm, or skipping a step. Gradients may be accumulated under no_sync(); the backward that reduces
// updates.
//
// Takes the place of the model's communication hook. Used by the training thread. If backward
// throws, some parameters have been updated and others not: go back to a checkpoint.
class OptimizerInBackward {
 public:
  // Throws std::invalid_argument for LBFGS, mixed precision, find_unused_parameters, static_graph,
  // sparse or delayed gradients, and parameters of the optimizer that the model does not train;
  // std::logic_error if the model has a communication hook. The optimizer outlives the model.
  template <typename M>
  OptimizerInBackward(torch::optim::Optimizer& optimizer, DistributedDataParallel<M>& model)
      : OptimizerInBackward(optimizer, model.core()) {}
  OptimizerInBackward(torch::optim::Optimizer& optimizer, DistributedDataParallelCore& model);

  // How many buckets were updated before the last gradient had been computed, over all backwards so
  // far. This measures the overlap.
  std::size_t early_updates() const;

 private:
  class Hook;
  std::shared_ptr<Hook> hook_;
};

}  // namespace ddp
