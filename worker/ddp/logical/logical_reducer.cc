#include "worker/ddp/logical/logical_reducer.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "worker/ddp/averaging/verify.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// In which gradients of the type are summed.
at::ScalarType sum_type(const NamedTensor& parameter) {
  if (!at::isFloatingType(parameter.tensor.scalar_type())) {
    throw std::invalid_argument(fmt::format("{} is {}; gradients of floating point are averaged",
                                            parameter.name, describe(parameter.tensor)));
  }
  return element_type(parameter.tensor, parameter.name) == DType::kF64 ? at::kDouble : at::kFloat;
}

// Once the workers agree on what they are about to train.
LogicalWorld agreed_world(const ModuleState& state, ProcessGroup& group, int logical_size) {
  verify_same_model(state, group, {fmt::format("{} logical ranks", logical_size)});
  return {logical_size, group.rank(), group.size()};
}

}  // namespace

LogicalReducer::LogicalReducer(const torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                               int logical_size)
    : world_(agreed_world(state_of(module), *group, logical_size)),
      group_(std::move(group)),
      parameters_(state_of(module).trainable()) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    std::vector<std::size_t> members;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (sum_type(parameters_[index]) == type) members.push_back(index);
    }
    if (!members.empty()) add_kind(type, members);
  }
  used_.assign(parameters_.size(), 0);
}

void LogicalReducer::add_kind(at::ScalarType type, const std::vector<std::size_t>& members) {
  std::vector<std::int64_t> offsets;
  std::int64_t count = 0;
  for (const std::size_t index : members) {
    offsets.push_back(count);
    count += parameters_[index].tensor.numel();
  }
  kinds_.push_back({.sum = {world_, group_, static_cast<std::size_t>(count), type},
                    .parameters = members,
                    .offsets = std::move(offsets)});
  kinds_.back().views.resize(members.size());
  kinds_.back().tag =
      SharedText(fmt::format("gradients of logical ranks ({} .. {})",
                             parameters_[members.front()].name, parameters_[members.back()].name));
}

// The gradients' parts of the tensor that kind.sum is at.
const std::vector<at::Tensor>& LogicalReducer::slots_at(Kind& kind, const at::Tensor& flat) const {
  if (kind.slots.size() <= kind.sum.level()) kind.slots.resize(kind.sum.level() + 1);
  std::vector<at::Tensor>& slots = kind.slots[kind.sum.level()];
  if (slots.empty()) {
    for (std::size_t i = 0; i < kind.parameters.size(); ++i) {
      slots.push_back(slot_of(flat, kind.offsets[i], parameters_[kind.parameters[i]].tensor));
    }
  }
  return slots;
}

void LogicalReducer::take(const at::Tensor& slot, std::size_t parameter) {
  const NamedTensor& named = parameters_[parameter];
  at::Tensor& gradient = named.tensor.mutable_grad();
  if (!gradient.defined()) {
    zero_values(slot);
    return;
  }
  const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (dense.layout() != at::kStrided || dense.sizes() != named.tensor.sizes()) {
    throw std::invalid_argument(fmt::format("the gradient of {} ({}) is {}; expected its sizes",
                                            named.name, describe(named.tensor), describe(dense)));
  }
  if (!is_same_memory(slot, dense)) copy_values(slot, dense);  // Zeroes in place of an average.
  used_[parameter] = 1;
  gradient.reset();
}

void LogicalReducer::add() {
  const at::NoGradGuard no_grad;
  try {
    for (Kind& kind : kinds_) {
      const std::vector<at::Tensor>& slots = slots_at(kind, kind.sum.next());
      for (std::size_t i = 0; i < slots.size(); ++i) take(slots[i], kind.parameters[i]);
      kind.sum.add();
    }
  } catch (const std::invalid_argument& error) {
    group_->abort(error.what());
    throw;
  }
}

void LogicalReducer::reduce() {
  const at::NoGradGuard no_grad;
  static const SharedText flags("flags of gradients");
  for (Kind& kind : kinds_) kind.sum.average(kind.tag);
  if (world_.workers() > 1 && !used_.empty()) {
    group_->all_reduce({used_.data(), used_.size(), DType::kU8}, ReduceOp::kMax, {{}, flags})
        ->wait();
  }
  for (Kind& kind : kinds_) publish(kind);
  std::fill(used_.begin(), used_.end(), 0);
}

void LogicalReducer::publish(Kind& kind) {
  for (std::size_t i = 0; i < kind.parameters.size(); ++i) {
    if (used_[kind.parameters[i]] == 0) continue;
    const at::Tensor& parameter = parameters_[kind.parameters[i]].tensor;
    const at::Tensor& average = kind.slots.front()[i];
    parameter.mutable_grad() = average.scalar_type() == parameter.scalar_type()
                                   ? gradient_view(kind.views[i], average)
                                   : average.to(parameter.scalar_type());
  }
}

void LogicalReducer::restart() {
  for (Kind& kind : kinds_) kind.sum.restart();
  std::fill(used_.begin(), used_.end(), 0);
}

}  // namespace ddp
