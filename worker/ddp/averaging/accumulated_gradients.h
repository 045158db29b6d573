#pragma once

#include <string>

#include "worker/ddp/averaging/comm_hook.h"

namespace torch::nn {
class Module;
}

namespace ddp {

// Saves the gradients that this rank has accumulated and not averaged yet, for a checkpoint between
// the backwards of one step (no_sync). Each rank has its own. If the number of ranks has changed,
// training continues with their mean over the former ranks. A hook's state is restored in the same
// way, so they are saved as one. For Checkpointer.
class AccumulatedGradients final : public CommHook {
 public:
  // The module must outlive this object.
  explicit AccumulatedGradients(torch::nn::Module& module) : module_(module) {}

  std::string name() const override { return "accumulated_gradients"; }
  // Throws std::logic_error: this hook only saves state.
  Future run(GradBucket& bucket) override;

  CommHookState state() const override;
  void restore(const CommHookState& state) override;

 private:
  torch::nn::Module& module_;
};

}  // namespace ddp
