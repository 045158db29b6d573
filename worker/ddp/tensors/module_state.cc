#include "worker/ddp/tensors/module_state.h"

#include <cstddef>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace ddp {
namespace {

std::vector<NamedTensor> once_each(const std::vector<NamedTensor>& named) {
  std::vector<NamedTensor> result;
  std::unordered_map<const at::TensorImpl*, std::size_t> index;
  for (const NamedTensor& item : named) {
    if (!item.tensor.defined()) continue;
    const auto [entry, is_first] = index.emplace(item.tensor.unsafeGetTensorImpl(), result.size());
    if (is_first) {
      result.push_back(item);
    } else {
      result[entry->second].shared_as.push_back(item.name);
    }
  }
  return result;
}

std::vector<NamedTensor> named_tensors(
    const std::vector<std::pair<std::string, at::Tensor>>& named) {
  std::vector<NamedTensor> result;
  for (const auto& [name, tensor] : named) result.push_back({name, tensor, {}});
  return result;
}

}  // namespace

ModuleState state_of(const torch::nn::Module& module) {
  return state_of(named_tensors(module.named_parameters().pairs()),
                  named_tensors(module.named_buffers().pairs()));
}

ModuleState state_of(const std::vector<NamedTensor>& parameters,
                     const std::vector<NamedTensor>& buffers) {
  return {once_each(parameters), once_each(buffers)};
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

std::vector<NamedTensor> ModuleState::trainable() const {
  std::vector<NamedTensor> result;
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.requires_grad()) result.push_back(parameter);
  }
  return result;
}

ModuleState ModuleState::without(const std::vector<std::string>& names) const {
  ModuleState rest;
  std::unordered_set<std::string> left(names.begin(), names.end());
  const std::unordered_set<std::string> ignored = left;
  const auto keep = [&](const std::vector<NamedTensor>& from, std::vector<NamedTensor>& to) {
    for (const NamedTensor& item : from) {
      std::vector<std::string> own = item.shared_as;
      own.push_back(item.name);
      bool is_ignored = false;
      for (const std::string& name : own) {
        is_ignored = is_ignored || ignored.count(name) != 0;
        left.erase(name);
      }
      if (!is_ignored) to.push_back(item);
    }
  };
  keep(parameters, rest.parameters);
  keep(buffers, rest.buffers);
  if (!left.empty()) {
    throw std::invalid_argument(fmt::format(
        "parameters_to_ignore: the module has no parameter or buffer '{}'", *left.begin()));
  }
  return rest;
}

std::vector<at::Tensor> ModuleState::tensors() const {
  std::vector<at::Tensor> result;
  for (const auto* list : {&parameters, &buffers}) {
    for (const NamedTensor& item : *list) result.push_back(item.tensor);
  }
  return result;
}

}  // namespace ddp
