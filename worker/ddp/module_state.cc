#include "worker/ddp/module_state.h"

#include <cstddef>
#include <unordered_map>

#include <torch/nn/module.h>

namespace ddp {
namespace {

template <typename Named>
std::vector<NamedTensor> collect(const Named& named) {
  std::vector<NamedTensor> result;
  std::unordered_map<const at::TensorImpl*, std::size_t> index;
  for (const auto& item : named) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    const auto [entry, is_first] = index.emplace(tensor.unsafeGetTensorImpl(), result.size());
    if (is_first) {
      result.push_back({item.key(), tensor, {}});
    } else {
      result[entry->second].shared_as.push_back(item.key());
    }
  }
  return result;
}

}  // namespace

ModuleState state_of(const torch::nn::Module& module) {
  return {collect(module.named_parameters()), collect(module.named_buffers())};
}

std::vector<NamedTensor> ModuleState::trainable() const {
  std::vector<NamedTensor> result;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad()) result.push_back(parameter);
  }
  return result;
}

std::vector<at::Tensor> ModuleState::tensors() const {
  std::vector<at::Tensor> result;
  for (const auto* list : {&parameters, &buffers}) {
    for (const NamedTensor& item : *list) result.push_back(item.tensor);
  }
  return result;
}

}  // namespace ddp
