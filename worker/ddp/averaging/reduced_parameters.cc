#include "worker/ddp/averaging/reduced_parameters.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace ddp {
namespace {

struct ReducerRegistry {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, int> reducers;
  std::atomic<std::uint64_t> generation{1};
};

ReducerRegistry& reducer_registry() {
  // Never destroyed: a model may be a static object.
  static auto* const instance = new ReducerRegistry;
  return *instance;
}

}  // namespace

ReducedParameters::ReducedParameters(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters) parameters_.push_back(parameter.tensor);
  ReducerRegistry& registry = reducer_registry();
  const std::lock_guard lock(registry.mutex);
  for (const at::Tensor& parameter : parameters_) {
    ++registry.reducers[parameter.unsafeGetTensorImpl()];
  }
  ++registry.generation;
}

ReducedParameters::~ReducedParameters() {
  ReducerRegistry& registry = reducer_registry();
  const std::lock_guard lock(registry.mutex);
  for (const at::Tensor& parameter : parameters_) {
    const auto found = registry.reducers.find(parameter.unsafeGetTensorImpl());
    if (--found->second == 0) registry.reducers.erase(found);
  }
  ++registry.generation;
}

std::optional<ReducedParameters::Shared> ReducedParameters::find_shared() {
  ReducerRegistry& registry = reducer_registry();
  if (registry.generation == checked_) return {};
  const std::lock_guard lock(registry.mutex);
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const int reducers = registry.reducers.at(parameters_[index].unsafeGetTensorImpl());
    if (reducers > 1) return Shared{index, reducers};
  }
  checked_ = registry.generation;
  return {};
}

}  // namespace ddp
