#include "worker/ddp/averaging/low_precision_parameters.h"

#include <exception>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace ddp {

LowPrecisionParameters::LowPrecisionParameters(const std::vector<at::Tensor>& parameters,
                                               at::ScalarType type) {
  for (const at::Tensor& tensor : parameters) {
    if (!tensor.is_floating_point() || tensor.scalar_type() == type) continue;
    parameters_.push_back({tensor, tensor.variable_data(), tensor.variable_data().to(type)});
  }
}

LowPrecisionParameters::~LowPrecisionParameters() {
  try {
    restore();
    // Also where parameters are full already: the reduction may have failed behind that.
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : parameters_) {
      at::Tensor& gradient = parameter.tensor.mutable_grad();
      if (gradient.defined()) gradient = gradient.to(parameter.tensor.scalar_type());
    }
  } catch (const std::exception&) {
    // No memory for gradients in their own type; the next zero_grad drops them.
  }
}

bool LowPrecisionParameters::lower() {
  if (std::exchange(is_low_, true)) return false;
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    // Somebody may have given it other memory since (Module::to, set_data).
    parameter.full = parameter.tensor.variable_data();
    parameter.low.copy_(parameter.full);
    parameter.tensor.set_data(parameter.low);
  }
  return true;
}

void LowPrecisionParameters::restore() {
  if (!std::exchange(is_low_, false)) return;
  for (Parameter& parameter : parameters_) parameter.tensor.set_data(parameter.full);
}

void convert_buffers(const std::vector<at::Tensor>& buffers, at::ScalarType type) {
  for (at::Tensor buffer : buffers) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.variable_data().to(type));
  }
}

}  // namespace ddp
