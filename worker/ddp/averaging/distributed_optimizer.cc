#include "worker/ddp/averaging/distributed_optimizer.h"

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/averaging/clip_grad.h"
#include "worker/ddp/averaging/gradient_reducer.h"
#include "worker/ddp/averaging/gradient_slots.h"
#include "worker/ddp/averaging/verify.h"
#include "worker/ddp/tensors/broadcast.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// The average over the ranks, the same bits on all of them.
at::Tensor average_of(const at::Tensor& loss, ProcessGroup& group) {
  gradient_type(loss, "the loss");
  at::Tensor average = loss.detach().cpu().contiguous().clone();
  group.all_reduce(buffer_of(average), ReduceOp::kAvg, {{}, "loss"})->wait();
  return average.to(loss.device());
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::shared_ptr<ProcessGroup> group,
                                           const DistributedOptimizerOptions& options)
    : optimizer_(optimizer),
      group_(group),
      reducer_(std::make_unique<GradientReducer>(std::move(group), options)) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const torch::nn::Module& names_of,
                                           std::shared_ptr<ProcessGroup> group,
                                           const DistributedOptimizerOptions& options)
    : DistributedOptimizer(optimizer, std::move(group), options) {
  reducer_->set_naming([&names_of](const at::Tensor& parameter, std::size_t index) {
    for (const NamedTensor& named : state_of(names_of).parameters) {
      if (named.tensor.is_same(parameter)) return named.name;
    }
    return fmt::format("parameter {}", index);
  });
}

DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  reducer_->register_comm_hook(std::move(hook));
}

BucketNames DistributedOptimizer::bucket_layout() const { return reducer_->bucket_layout(); }

const std::vector<at::Tensor>& DistributedOptimizer::parameters() {
  parameters_.clear();
  for (const auto& group : optimizer_.param_groups()) {
    parameters_.insert(parameters_.end(), group.params().begin(), group.params().end());
  }
  return parameters_;
}

void DistributedOptimizer::reduce_gradients() {
  reducer_->reduce(parameters());
  gradients_ = Gradients::kReduced;
}

double DistributedOptimizer::clip_grad_norm_(double max_norm, double norm_type,
                                             bool error_if_nonfinite) {
  // Clipped gradients are reduced again: if the step was skipped, they belong to the next step.
  if (gradients_ != Gradients::kReduced) reduce_gradients();
  gradients_ = Gradients::kClipped;
  return ddp::clip_grad_norm_(parameters(), max_norm, norm_type, error_if_nonfinite);
}

void DistributedOptimizer::step() {
  if (gradients_ == Gradients::kLocal) reduce_gradients();
  gradients_ = Gradients::kLocal;
  optimizer_.step();
}

at::Tensor DistributedOptimizer::step(const std::function<at::Tensor()>& closure) {
  gradients_ = Gradients::kLocal;
  return optimizer_.step([&] {
    const at::Tensor loss = closure();
    reducer_->reduce(parameters());
    return average_of(loss, *group_);
  });
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  gradients_ = Gradients::kLocal;
  for (const at::Tensor& parameter : parameters()) {
    zero_gradient(parameter.mutable_grad(), set_to_none);
  }
}

void broadcast_master_param(const torch::nn::Module& module, ProcessGroup& group) {
  const ModuleState state = state_of(module);
  verify_same_model(state, group);
  CoalescedBroadcast(state.tensors()).run(group, 0, "parameters and buffers");
}

}  // namespace ddp
