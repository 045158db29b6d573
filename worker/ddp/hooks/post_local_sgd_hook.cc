#include "worker/ddp/hooks/post_local_sgd_hook.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/hooks/hook_state.h"
#include "worker/ddp/hooks/subgroups.h"

namespace ddp {

PostLocalSGDState::PostLocalSGDState(std::shared_ptr<ProcessGroup> process_group,
                                     std::shared_ptr<ProcessGroup> subgroup,
                                     std::int64_t start_localSGD_iter,
                                     bool post_local_gradient_allreduce)
    : process_group_(std::move(process_group)),
      subgroup_(std::move(subgroup)),
      start_localSGD_iter_(start_localSGD_iter),
      post_local_gradient_allreduce_(post_local_gradient_allreduce) {
  if (!process_group_) throw std::invalid_argument("PostLocalSGDState was given no process group");
  if (start_localSGD_iter_ < 0) {
    throw std::invalid_argument(
        fmt::format("PostLocalSGDState: start_localSGD_iter must not be negative, it is {}",
                    start_localSGD_iter_));
  }
  if (!subgroup_ && post_local_gradient_allreduce_) subgroup_ = new_node_subgroups(*process_group_);
}

CommHookState PostLocalSGDState::state() const {
  CommHookState state;
  state.values = {{"iter", iter_}};
  return state;
}

void PostLocalSGDState::restore(const CommHookState& state) {
  const HookStateReader reader("PostLocalSGDState", state);
  const std::int64_t iter = reader.count("iter");
  reader.take(state.replicated, {});
  reader.take(state.per_rank, {});
  iter_ = iter;
}

Future post_localSGD_hook(PostLocalSGDState& state, GradBucket& bucket) {
  if (state.iter_ < state.start_localSGD_iter_) {
    if (bucket.is_last()) ++state.iter_;
    return allreduce_hook(*state.process_group_, bucket);
  }
  if (!state.post_local_gradient_allreduce_) return Future(bucket.buffer());
  return allreduce_hook(*state.subgroup_, bucket);
}

}  // namespace ddp
