#include "worker/ddp/averaging/accumulated_gradients.h"

#include <stdexcept>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp {

Future AccumulatedGradients::run(GradBucket& /*bucket*/) {
  throw std::logic_error("accumulated gradients cannot be run as a communication hook");
}

CommHookState AccumulatedGradients::state() const {
  CommHookState state;
  for (const NamedTensor& parameter : state_of(module_).trainable()) {
    if (parameter.tensor.grad().defined()) state.per_rank[parameter.name] = parameter.tensor.grad();
  }
  return state;
}

void AccumulatedGradients::restore(const CommHookState& state) {
  const std::vector<NamedTensor> parameters = state_of(module_).trainable();
  for (const NamedTensor& parameter : parameters) {
    const auto saved = state.per_rank.find(parameter.name);
    if (saved == state.per_rank.end() || saved->second.sizes() == parameter.tensor.sizes())
      continue;
    throw std::invalid_argument(fmt::format("the gradient of {} that was saved is {}",
                                            parameter.name, describe(saved->second)));
  }
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters) {
    const auto saved = state.per_rank.find(parameter.name);
    const bool any = saved != state.per_rank.end();
    // On the parameter's device and with its strides, as backward would have made it.
    at::Tensor gradient;
    if (any) {
      gradient = at::empty_like(parameter.tensor,
                                parameter.tensor.options().dtype(saved->second.scalar_type()));
      gradient.copy_(saved->second);
    }
    parameter.tensor.mutable_grad() = gradient;
  }
}

}  // namespace ddp
