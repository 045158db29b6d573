#pragma once

#include <string>

#include "worker/ddp/averaging/comm_hook.h"

namespace torch::nn {
class Module;
}

namespace ddp {

// The gradients that this rank has added up and not averaged yet, as state to save: that of a
// checkpoint between the backwards of one step (no_sync). They are each rank's own, and if the
// number of ranks has changed, their mean over the ranks that there were is the right thing to go
// on with, so they are saved as a hook's state. For Checkpointer.
class AccumulatedGradients final : public CommHook {
 public:
  // Refers to the module.
  explicit AccumulatedGradients(torch::nn::Module& module) : module_(module) {}

  std::string name() const override { return "accumulated_gradients"; }
  // Not one to communicate with: throws std::logic_error.
  Future run(GradBucket& bucket) override;

  CommHookState state() const override;
  void restore(const CommHookState& state) override;

 private:
  torch::nn::Module& module_;
};

}  // namespace ddp
