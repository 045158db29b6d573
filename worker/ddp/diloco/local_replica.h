#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/state/optimizer_state.h"

namespace ddp {

// The parameters and the optimizer's state of each rank, for checkpoints of a training whose
// replicas train apart for a while (post-local SGD, DiLoCo). To continue exactly, a rank needs its
// own. If the number of ranks changes, training continues with the mean over the ranks. A
// checkpoint treats a hook's state in this way, so this is a hook (Checkpointer::add_comm_hook).
class LocalReplica final : public CommHook {
 public:
  // Refers to both.
  LocalReplica(torch::nn::Module& model, torch::optim::Optimizer& optimizer);

  std::string name() const override { return "local_replica"; }
  // Throws std::logic_error: this hook only saves state.
  Future run(GradBucket& bucket) override;

  CommHookState state() const override;
  void restore(const CommHookState& state) override { loaded_ = state; }

  // Puts what was restored, if anything, into the model and the optimizer. Call it after the
  // checkpoint has given them rank 0's values.
  void apply();

 private:
  torch::nn::Module& model_;
  std::unique_ptr<OptimizerState> optimizer_;
  CommHookState loaded_;
};

}  // namespace ddp
