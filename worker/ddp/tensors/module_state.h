#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp {

struct ShardedTensor;

struct NamedTensor {
  std::string name;  // As named_parameters gives it: "conv1.weight". The first one, where several
                     // share the tensor.
  at::Tensor tensor;
  std::vector<std::string> shared_as;  // Its further names.
  // If each rank has only a part: this rank's part; then `tensor` has no data (at::kMeta).
  std::shared_ptr<const ShardedTensor> parts = nullptr;
};

// What ranks have in common before training: every parameter, frozen or not, and every buffer, once
// each, in the order of definition. The tensors are the module's own.
struct ModuleState {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;

  std::vector<NamedTensor> trainable() const;  // The parameters that require a gradient.
  std::vector<at::Tensor> tensors() const;     // Parameters, then buffers.
  // The state without the tensors of these names (for a shared tensor, any of its names). Throws
  // std::invalid_argument for an unknown name.
  ModuleState without(const std::vector<std::string>& names) const;
};

ModuleState state_of(const torch::nn::Module& module);
// Of names and tensors, without shared_as; a tensor may be there under several names.
ModuleState state_of(const std::vector<NamedTensor>& parameters,
                     const std::vector<NamedTensor>& buffers);

// The parameters of all groups, in their order.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

// Names of the parameters that belong to an Embedding or EmbeddingBag with sparse(true).
std::vector<std::string> sparse_parameters(const torch::nn::Module& module,
                                           const std::vector<NamedTensor>& parameters);

}  // namespace ddp
