#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "worker/runtime/process_group.h"
#include "worker/train/model.h"
#include "worker/train/options.h"

namespace ddp::train {

// This rank's copy of the model with the way its gradients are averaged with the other ranks'. One
// step is
//   zero_grad(), forward(), backward() on the loss, step()
// and leaves equal parameters on all ranks. One thread; everything but zero_grad is collective and
// throws CollectiveError.
class Replica {
 public:
  // Verifies that the model is the same on all ranks and takes rank 0's parameters and buffers. The
  // optimizer is over the model's parameters and outlives the replica.
  static std::unique_ptr<Replica> make(GradSync mode, std::shared_ptr<Model> model,
                                       torch::optim::Optimizer& optimizer,
                                       std::shared_ptr<ProcessGroup> group);
  virtual ~Replica() = default;

  virtual void zero_grad() = 0;
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  virtual void step() = 0;
  // Gives the buffers (the statistics of batch normalisation) the values they have on rank 0.
  virtual void broadcast_buffers() = 0;
};

}  // namespace ddp::train
