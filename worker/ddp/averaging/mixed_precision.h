#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

namespace ddp {

// As PyTorch's _MixedPrecision. What is not set keeps its type.
struct MixedPrecision {
  // The type of parameters from the start of a forward to the end of its backward, and so of
  // activations and gradients. Floating-point inputs of forward are converted, too.
  std::optional<at::ScalarType> param_dtype;
  // The type in which gradients are averaged. Default: param_dtype, if that is set.
  std::optional<at::ScalarType> reduce_dtype;
  // The type of buffers, from construction on.
  std::optional<at::ScalarType> buffer_dtype;

  bool is_set() const { return param_dtype || reduce_dtype || buffer_dtype; }
  std::optional<at::ScalarType> type_of_reduction() const {
    return reduce_dtype ? reduce_dtype : param_dtype;
  }
};

}  // namespace ddp
