#pragma once

#include <memory>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

#include "worker/ddp/hooks/model_averager.h"

namespace ddp {

// Wraps an optimizer so that a step is the local step and then the averager's. The optimizer must
// outlive it and stays usable by itself: its hyper-parameters and state are where they were.
//
//   torch::optim::SGD sgd(model->parameters(), options);
//   ddp::PostLocalSGDOptimizer optimizer(
//       sgd, std::make_shared<ddp::PeriodicModelAverager>(4, 100, group));
//
// The averager's warmup_steps are the start_localSGD_iter of PostLocalSGDState. To resume, register
// the wrapped optimizer with Checkpointer::add_optimizer and the averager with add_value.
class PostLocalSGDOptimizer {
 public:
  PostLocalSGDOptimizer(torch::optim::Optimizer& optim, std::shared_ptr<ModelAverager> averager)
      : optim_(optim), averager_(std::move(averager)) {}

  // Collective where the averager is.
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) {
    torch::Tensor loss = optim_.step(std::move(closure));
    averager_->average_parameters(optim_);
    return loss;
  }
  // Drops the gradients, which the averager needs until step() has returned.
  void zero_grad() {
    for (auto& group : optim_.param_groups()) {
      for (auto& parameter : group.params()) parameter.mutable_grad().reset();
    }
  }

  torch::optim::Optimizer& optim() { return optim_; }
  ModelAverager& averager() { return *averager_; }

 private:
  torch::optim::Optimizer& optim_;
  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace ddp
