#pragma once

#include <cstdint>
#include <memory>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// State of post_localSGD_hook. One object for one model; used by the thread that runs the hook.
class PostLocalSGDState {
 public:
  // From step start_localSGD_iter on gradients are averaged over `subgroup`, or, with
  // post_local_gradient_allreduce = false, not at all. A null subgroup stands for the ranks of this
  // node; then construction is collective.
  PostLocalSGDState(std::shared_ptr<ProcessGroup> process_group,
                    std::shared_ptr<ProcessGroup> subgroup, std::int64_t start_localSGD_iter,
                    bool post_local_gradient_allreduce = true);

  ProcessGroup& process_group() const { return *process_group_; }
  ProcessGroup& subgroup() const { return *subgroup_; }
  std::int64_t start_localSGD_iter() const { return start_localSGD_iter_; }
  bool post_local_gradient_allreduce() const { return post_local_gradient_allreduce_; }
  std::int64_t iter() const { return iter_; }  // Steps so far; stands still at the start.

  // CommHook::state and restore: the step.
  CommHookState state() const;
  void restore(const CommHookState& state);

 private:
  friend Future post_localSGD_hook(PostLocalSGDState& state, GradBucket& bucket);

  std::shared_ptr<ProcessGroup> process_group_;
  std::shared_ptr<ProcessGroup> subgroup_;
  std::int64_t start_localSGD_iter_;
  bool post_local_gradient_allreduce_;
  std::int64_t iter_ = 0;
};

// Post-local SGD (arXiv 1808.07217): plain averaging over all ranks until start_localSGD_iter, then
// within subgroups; a model averager (model_averager.h) with the same number of warm-up steps
// brings the replicas together after optimizer steps.
//
// Between two averagings replicas differ. A Checkpointer saves rank 0's model, so save after a step
// in which the averager has averaged over all ranks (ModelAverager::in_agreement). The optimizer's
// state is not averaged: resuming is exact while gradients are averaged over all ranks, or with an
// optimizer without state.
Future post_localSGD_hook(PostLocalSGDState& state, GradBucket& bucket);

}  // namespace ddp
