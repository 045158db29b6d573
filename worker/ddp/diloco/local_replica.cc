#include "worker/ddp/diloco/local_replica.h"

#include <stdexcept>
#include <utility>

#include <ATen/core/grad_mode.h>

namespace ddp {

LocalReplica::LocalReplica(torch::nn::Module& model, torch::optim::Optimizer& optimizer)
    : model_(model), optimizer_(make_optimizer_state("optimizer", optimizer, model)) {}

Future LocalReplica::run(GradBucket& /*bucket*/) {
  throw std::logic_error("a local replica cannot be run as a communication hook");
}

CommHookState LocalReplica::state() const {
  CommHookState state;
  for (const auto& parameter : model_.named_parameters()) {
    state.per_rank["parameter/" + parameter.key()] = parameter.value().detach();
  }
  for (const StateTensor& tensor : optimizer_->snapshot("optimizer/").tensors) {
    state.per_rank[tensor.name] = tensor.tensor;
  }
  return state;
}

void LocalReplica::apply() {
  const at::NoGradGuard no_grad;
  const CommHookState own = state();  // Its tensors are the model's and the optimizer's themselves.
  const CommHookState loaded = std::exchange(loaded_, {});
  for (const auto& [name, tensor] : loaded.per_rank) own.per_rank.at(name).copy_(tensor);
}

}  // namespace ddp
