#include "worker/ddp/distributed_optimizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/broadcast.h"
#include "worker/ddp/module_state.h"
#include "worker/ddp/tensors.h"
#include "worker/ddp/verify.h"

namespace ddp {

namespace {

std::vector<at::Tensor> trainable_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) result.push_back(parameter);
  }
  return result;
}

bool are_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

}  // namespace

void GradientReducer::plan(const std::vector<at::Tensor>& trainable, ProcessGroup& group) {
  parts_.clear();
  planned_.clear();
  std::vector<at::ScalarType> types;
  for (std::size_t index = 0; index < trainable.size(); ++index) {
    const at::Tensor& parameter = trainable[index];
    gradient_type(parameter, fmt::format("parameter {}", index));
    auto type = std::find(types.begin(), types.end(), parameter.scalar_type());
    if (type == types.end()) {
      type = types.insert(types.end(), parameter.scalar_type());
      parts_.emplace_back();
    }
    parts_[static_cast<std::size_t>(type - types.begin())].parameters.push_back(parameter);
  }
  for (Part& part : parts_) {
    std::int64_t elements = 0;
    for (const at::Tensor& parameter : part.parameters) elements += parameter.numel();
    const auto count = static_cast<std::int64_t>(part.parameters.size());
    part.flat = registered_zeros(group, elements + count, part.parameters[0].scalar_type());
    part.flags = part.flat.narrow(0, elements, count);
    elements = 0;
    for (const at::Tensor& parameter : part.parameters) {
      part.slots.push_back(slot_of(part.flat, elements, parameter));
      elements += parameter.numel();
    }
  }
  planned_ = trainable;
  planned_for_ = &group;
}

void GradientReducer::pack(Part& part) {
  const at::Tensor defined = at::zeros(part.flags.sizes(), at::kDouble);
  for (std::size_t index = 0; index < part.parameters.size(); ++index) {
    const at::Tensor& parameter = part.parameters[index];
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      part.slots[index].zero_();
      continue;
    }
    if (gradient.layout() != at::kStrided || gradient.sizes() != parameter.sizes() ||
        gradient.scalar_type() != parameter.scalar_type()) {
      throw std::invalid_argument(
          fmt::format("the gradient of parameter {} ({}) is {}; only dense gradients of the "
                      "parameter's type can be reduced",
                      index, describe(parameter), describe(gradient)));
    }
    copy_values(part.slots[index], gradient);
    defined.data_ptr<double>()[index] = 1;
  }
  part.flags.copy_(defined);
}

void GradientReducer::unpack(const Part& part) {
  const at::Tensor used = part.flags.to(at::kDouble);
  for (std::size_t index = 0; index < part.parameters.size(); ++index) {
    if (!(used.data_ptr<double>()[index] > 0)) continue;
    at::Tensor& gradient = part.parameters[index].mutable_grad();
    if (gradient.defined()) {
      copy_values(gradient, part.slots[index]);
    } else {
      gradient = part.slots[index].clone();
    }
  }
}

void GradientReducer::reduce(const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  try {
    const std::vector<at::Tensor> trainable = trainable_of(parameters);
    if (planned_for_ != &group || !are_same(trainable, planned_)) plan(trainable, group);
    for (Part& part : parts_) pack(part);
    for (Part& part : parts_) {
      part.work = group.all_reduce(buffer_of(part.flat), ReduceOp::kAvg, {{}, "gradients"});
    }
    for (Part& part : parts_) part.work->wait();
    for (const Part& part : parts_) unpack(part);
  } catch (const std::exception& error) {
    group.abort(error.what());
    for (Part& part : parts_) wait_quietly(part.work);
    throw;
  }
}

void reduce_gradients(const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  GradientReducer().reduce(parameters, group);
}

void broadcast_parameters(const torch::nn::Module& module, ProcessGroup& group) {
  const ModuleState state = state_of(module);
  verify_same_model(state, group);
  CoalescedBroadcast(state.tensors()).run(group, 0, "parameters and buffers");
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           std::shared_ptr<ProcessGroup> group)
    : optimizer_(optimizer), group_(std::move(group)) {}

void DistributedOptimizer::step() {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer_.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  reducer_.reduce(parameters, *group_);
  optimizer_.step();
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  if (!set_to_none) {
    optimizer_.zero_grad();
    return;
  }
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) parameter.mutable_grad().reset();
  }
}

}  // namespace ddp
