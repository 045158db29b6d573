#include "worker/ddp/averaging/gradient_slots.h"

#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "common/base/shared_text.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {
namespace {

// Keeps the same tensor object over other memory, so that whoever holds it sees the new values.
void point_to(at::Tensor& gradient, const at::Tensor& memory) {
  const at::NoGradGuard no_grad;
  gradient.set_(memory.storage(), memory.storage_offset(), memory.sizes(), memory.strides());
}

}  // namespace

GradientSlots::GradientSlots(std::vector<NamedTensor> parameters, Options options)
    : options_(options), named_(std::move(parameters)) {
  parameters_.resize(named_.size());
  used_.assign(named_.size(), 1);
  for (std::size_t index = 0; index < named_.size(); ++index) {
    parameters_[index].named = named_[index];
  }
}

bool GradientSlots::may_view(const Parameter& parameter) const {
  return options_.as_views && parameter.slot.defined() &&
         parameter.slot.scalar_type() == parameter.named.tensor.scalar_type();
}

void GradientSlots::place(std::size_t index, at::Tensor slot) {
  Parameter& parameter = parameters_[index];
  parameter.slot = std::move(slot);
  at::Tensor& gradient = parameter.named.tensor.mutable_grad();
  if (!std::exchange(parameter.is_vacated, false) || !gradient.defined()) return;
  copy_values(parameter.slot, gradient);
  point_to(gradient, parameter.slot);
}

void GradientSlots::vacate() {
  for (Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.named.tensor.mutable_grad();
    parameter.is_vacated = is_same_memory(gradient, parameter.slot);
    if (parameter.is_vacated) point_to(gradient, gradient.variable_data().clone());
    parameter.slot.reset();
    parameter.view.reset();
  }
}

bool GradientSlots::fits(const at::Tensor& gradient, const Parameter& parameter,
                         const at::Tensor& slot) const {
  return (gradient.layout() == at::kStrided || (options_.densify && gradient.is_sparse())) &&
         gradient.sizes() == slot.sizes() &&
         (gradient.scalar_type() == slot.scalar_type() || options_.convert) &&
         gradient.device() == parameter.named.tensor.device();
}

void GradientSlots::refuse(const at::Tensor& gradient, const Parameter& parameter) const {
  const at::Tensor& like = parameter.named.tensor;
  const bool is_surprise = gradient.is_sparse() && !options_.densify;
  throw std::invalid_argument(fmt::format(
      "the gradient of {} ({}) is {} on {}; to be reduced, it must be dense, have its parameter's "
      "sizes{} and be on its device, {}{}",
      parameter.named.name, describe(like), describe(gradient), gradient.device().str(),
      options_.convert ? "" : " and type", like.device().str(),
      is_surprise ? "; only embeddings that had sparse(true) when the module was wrapped may have "
                    "sparse gradients"
                  : ""));
}

WorkPtr GradientSlots::exchange_used(ProcessGroup& group) {
  static const SharedText tag("flags of used parameters");
  return group.all_reduce({used_.data(), used_.size(), DType::kU8}, ReduceOp::kMax, {{}, tag});
}

// False if there was nothing to copy.
bool GradientSlots::copy_to(const at::Tensor& slot, const Parameter& parameter) const {
  const at::Tensor& gradient = parameter.named.tensor.grad();
  if (!gradient.defined()) {
    zero_values(slot);
    return false;
  }
  if (is_same_memory(gradient, slot)) return false;
  if (!fits(gradient, parameter, slot)) refuse(gradient, parameter);
  if (gradient.is_sparse()) {
    copy_values(slot, gradient.to_dense());
  } else {
    copy_values(slot, gradient);
  }
  return true;
}

void GradientSlots::stage(std::size_t index) {
  Parameter& parameter = parameters_[index];
  if (!copy_to(parameter.slot, parameter)) return;
  at::Tensor& gradient = parameter.named.tensor.mutable_grad();
  if (gradient.requires_grad()) {
    TORCH_WARN_ONCE(
        "gradients that were made with create_graph are averaged, but their graph is not: higher "
        "derivatives are those of this rank alone.");
  } else if (may_view(parameter)) {
    gradient = gradient_view(parameter.view, parameter.slot);
  }
}

void GradientSlots::stage_in(const at::Tensor& slot, std::size_t index) {
  copy_to(slot, parameters_[index]);
  parameters_[index].named.tensor.mutable_grad().reset();
}

void GradientSlots::stage_and_keep(std::size_t index) {
  Parameter& parameter = parameters_[index];
  const at::Tensor& gradient = parameter.named.tensor.grad();
  if (is_same_memory(gradient, parameter.slot)) parameter.before = gradient.clone();
  stage(index);
}

void GradientSlots::stage_zero(std::size_t index) { zero_values(parameters_[index].slot); }

void GradientSlots::publish(std::size_t index) {
  Parameter& parameter = parameters_[index];
  const at::Tensor before = std::exchange(parameter.before, {});
  if (!is_used(index)) {
    if (before.defined()) copy_values(parameter.slot, before);
    return;
  }
  at::Tensor& gradient = parameter.named.tensor.mutable_grad();
  const at::ScalarType type = parameter.named.tensor.scalar_type();
  if (!gradient.defined() || gradient.is_sparse() || gradient.scalar_type() != type) {
    gradient = may_view(parameter) ? gradient_view(parameter.view, parameter.slot)
                                   : parameter.slot.to(type, /*non_blocking=*/false, /*copy=*/true);
  } else if (!is_same_memory(gradient, parameter.slot)) {
    copy_values(gradient, parameter.slot);
  }
}

void GradientSlots::publish_value(std::size_t index, const at::Tensor& value) {
  if (is_used(index)) parameters_[index].named.tensor.mutable_grad() = value;
}

void GradientSlots::match_types() {
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.named.tensor.mutable_grad();
    const at::ScalarType type = parameter.named.tensor.scalar_type();
    if (gradient.defined() && gradient.scalar_type() != type) gradient = gradient.to(type);
  }
}

void GradientSlots::zero_grad(bool set_to_none) {
  for (const Parameter& parameter : parameters_) {
    zero_gradient(parameter.named.tensor.mutable_grad(), set_to_none);
  }
}

void zero_gradient(at::Tensor& gradient, bool set_to_none) {
  if (!gradient.defined()) return;
  const at::NoGradGuard no_grad;
  if (set_to_none) {
    gradient.reset();
  } else if (gradient.requires_grad()) {
    gradient = at::zeros_like(gradient);
  } else if (is_packed(gradient)) {
    zero_values(gradient);
  } else {
    gradient.zero_();
  }
}

}  // namespace ddp
