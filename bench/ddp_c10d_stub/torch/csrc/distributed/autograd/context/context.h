#pragma once

// Stands for a header that libtorch-dev of Debian 12 leaves out and c10d's reducer.hpp includes.
// Only what that one names: the reducer asks for it in RPC programs alone.
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

namespace torch::distributed::autograd {

class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
