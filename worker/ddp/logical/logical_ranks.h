#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/ids.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/logical/logical_world.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// What each logical rank of a training (LogicalWorld) has of its own besides gradients: its random
// numbers, drawn from LibTorch's default CPU generator, and the sum of its losses.
//
//   for (Rank logical = own.begin; logical < own.end; ++logical) {
//     ranks.enter(logical);
//     ... forward and backward ...
//     ranks.leave(logical);
//     ranks.add_loss(logical, loss, samples);
//   }
//
// A worker advances its own logical ranks; gather() shares their state with all workers. After it
// the object is the same on all workers, so it is replicated state for checkpoints and commits;
// register it with add_comm_hook. Any number of workers can resume from it exactly.
//
// Belongs to the training, not to a round. One thread.
class LogicalRanks final : public CommHook {
 public:
  // Logical rank r draws what a process draws after manual_seed(seed + r). Leaves the default
  // generator as it is.
  LogicalRanks(int size, std::uint64_t seed);

  int size() const { return static_cast<int>(generators_.size()); }

  // Sets the default generator to where the logical rank stopped; draws until leave() are the
  // logical rank's.
  void enter(Rank logical) const;
  void leave(Rank logical);

  // `sum`: the sum of the losses of `samples` of its samples.
  void add_loss(Rank logical, double sum, std::int64_t samples);
  // The mean loss over all samples, as of the last gather(). Summed in the order of an all_reduce
  // over as many ranks.
  double mean_loss() const;
  void clear_losses();

  // Every worker's logical ranks, on all workers. Collective; throws CollectiveError.
  void gather(const LogicalWorld& world, ProcessGroup& group);

  std::string name() const override { return "logical_ranks"; }
  // Throws std::logic_error: this hook only saves state.
  Future run(GradBucket& bucket) override;
  CommHookState state() const override;
  // Throws std::invalid_argument if the state is for another number of logical ranks.
  void restore(const CommHookState& state) override;

 private:
  struct Loss {
    double sum = 0;
    double samples = 0;
  };
  std::vector<at::Tensor> generators_;  // By logical rank: states, as generator_state() gives them.
  std::vector<Loss> losses_;            // By logical rank.
};

}  // namespace ddp
