#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/logical/logical_ranks.h"
#include "worker/ddp/logical/logical_reducer.h"
#include "worker/ddp/replica/replica.h"
#include "worker/ddp/tensors/broadcast.h"
#include "worker/train/models/model.h"

namespace ddp::train {

// The replica of a training with logical ranks (--logical-world-size). This worker runs some of
// them (worker/ddp/logical/logical_world.h). A step is
//   zero_grad(), for each of own(): { begin(), forward() and backward(), end() }, step()
// It ends with the same bytes as a step of one worker for each logical rank: each logical rank
// begins with the same parameters and buffers and draws from its own generator, gradients are
// averaged in the order of the logical ranks, and the buffers of logical rank 0 are kept.
//
// One thread; construction, clip_grad_norm(), step() and gather() are collective.
class LogicalReplica final : public Replica {
 public:
  // Like Replica::make. Throws std::invalid_argument also if there are more workers than logical
  // ranks. Keeps a reference to `ranks`, which belongs to the training and outlives the round.
  LogicalReplica(const std::string& comm_hook, std::shared_ptr<Model> model,
                 torch::optim::Optimizer& optimizer, const std::shared_ptr<ProcessGroup>& group,
                 LogicalRanks& ranks);

  // This worker's logical ranks.
  RankRange own() const { return reducer_.world().own(); }
  // What is computed between begin() and end() belongs to the logical rank. Call them for every one
  // of own() in every step, in the order of the ranks.
  void begin(Rank logical);
  void end(Rank logical);
  void zero_grad() override;
  at::Tensor forward(const std::function<at::Tensor()>& compute) override { return compute(); }
  std::unique_ptr<NoSync> no_sync() override { return nullptr; }
  double clip_grad_norm(double max_norm) override;
  void broadcast_buffers() override {}  // They are equal after each step.
  void gather() override { ranks_.gather(reducer_.world(), group()); }
  LogicalRanks* logical_ranks() override { return &ranks_; }

 private:
  void local_step() override;
  void reduce();
  void settle_buffers();

  std::shared_ptr<Model> model_;
  LogicalRanks& ranks_;
  LogicalReducer reducer_;
  bool is_reduced_ = false;
  std::vector<at::Tensor> buffers_;  // The model's.
  std::vector<at::Tensor> before_;   // Their values before the step, if needed.
  std::vector<at::Tensor> first_;    // Their values after logical rank 0, if needed.
  CoalescedBroadcast broadcast_;
};

}  // namespace ddp::train
