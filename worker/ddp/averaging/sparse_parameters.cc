#include <algorithm>
#include <memory>

#include <torch/nn/modules/embedding.h>

#include "worker/ddp/tensors/module_state.h"

namespace ddp {
namespace {

// The weight, if gradients of it are sparse.
at::Tensor sparse_weight(const torch::nn::Module& module) {
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    if (embedding->options.sparse()) return embedding->weight;
  }
  if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module)) {
    if (bag->options.sparse()) return bag->weight;
  }
  return {};
}

}  // namespace

std::vector<std::string> sparse_parameters(const torch::nn::Module& module,
                                           const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> weights = {sparse_weight(module)};
  for (const auto& child : module.modules(/*include_self=*/false)) {
    weights.push_back(sparse_weight(*child));
  }
  std::vector<std::string> names;
  for (const NamedTensor& parameter : parameters) {
    const bool is_sparse =
        std::any_of(weights.begin(), weights.end(), [&](const at::Tensor& weight) {
          return weight.defined() && weight.is_same(parameter.tensor);
        });
    if (is_sparse) names.push_back(parameter.name);
  }
  return names;
}

}  // namespace ddp
