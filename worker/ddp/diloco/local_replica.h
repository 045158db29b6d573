#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/state/optimizer_state.h"

namespace ddp {

// The parameters and the optimizer's state of each rank, for checkpoints of a training whose
// replicas train apart for a while (post-local SGD, DiLoCo): there a rank's own belong to what it
// needs to go on exactly, and if the number of ranks changes, the mean over the ranks is the right
// thing to go on with. That is what a checkpoint does with a hook's state, so it is given as one's
// (Checkpointer::add_comm_hook).
class LocalReplica final : public CommHook {
 public:
  // Refers to both.
  LocalReplica(torch::nn::Module& model, torch::optim::Optimizer& optimizer);

  std::string name() const override { return "local_replica"; }
  // Not one to communicate with: throws std::logic_error.
  Future run(GradBucket& bucket) override;

  CommHookState state() const override;
  void restore(const CommHookState& state) override { loaded_ = state; }

  // Puts what was restored, if anything was, into the model and the optimizer: after the checkpoint
  // has given them what it has of rank 0.
  void apply();

 private:
  torch::nn::Module& model_;
  std::unique_ptr<OptimizerState> optimizer_;
  CommHookState loaded_;
};

}  // namespace ddp
