#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "worker/ddp/averaging/future.h"
#include "worker/ddp/averaging/grad_bucket.h"

namespace ddp {

// What a hook must carry over a restart so that training goes on as if there had been none. Tensors
// are named after parameters ("error/conv1.weight"), never after buckets, whose layout may change.
struct CommHookState {
  nlohmann::json values;  // Equal on all ranks: counters, states of generators. Null: none.
  std::map<std::string, at::Tensor> replicated;  // Equal on all ranks.
  // This rank's own: what it still owes (residuals). Under the same names on all ranks.
  std::map<std::string, at::Tensor> per_rank;
};

// Replaces the averaging of a bucket (DistributedDataParallel::register_comm_hook). PyTorch's
// communication hooks as an interface, with state that can be saved.
//
// Hooks work on host memory: the gradients of a model on another device are given to them as a copy
// there, and go back when they are done.
//
// run() is called by a thread of backward as soon as a bucket is full, buckets in the order of
// their indices. It gets gradients that nobody has divided by the size of the group: averaging, if
// any, is its own business. The value of the future it returns has as many elements as the buffer,
// in any floating-point type; it becomes the gradients. It may be the buffer itself, changed in
// place. run() and continuations may issue operations, alike on all ranks. An exception ends the
// backward and aborts the reducer's group.
class CommHook {
 public:
  virtual ~CommHook() = default;

  // As --comm-hook of ddp-train names it: "powersgd".
  virtual std::string name() const = 0;
  virtual Future run(GradBucket& bucket) = 0;

  // State after the last step; tensors are copies or will not change. Between backwards, as
  // restore. It may wait for operations of the group: CollectiveError goes through to who saves.
  virtual CommHookState state() const { return {}; }
  // Takes state() of an earlier process. If the number of ranks has changed, every rank gets as
  // per_rank the mean over the ranks that there were, so that the average over all ranks of what is
  // owed stays what it was. Throws std::invalid_argument naming what does not fit; nothing has
  // changed then.
  virtual void restore(const CommHookState& /*state*/) {}
};

// What has state to save as CommHook says.
template <typename State>
concept SavableHookState = requires(const State& saved, State& restored,
                                    const CommHookState& state) {
  { saved.state() } -> std::same_as<CommHookState>;
  restored.restore(state);
};

// A hook from a function, as PyTorch's register_comm_hook takes it: `Future hook(State&,
// GradBucket&)`. `state` is whatever it needs, kept alive with it; the hook saves and restores it
// if it can be (SavableHookState).
template <typename State, typename Function>
std::shared_ptr<CommHook> make_comm_hook(std::shared_ptr<State> state, Function hook,
                                         std::string name = "user") {
  class FunctionHook final : public CommHook {
   public:
    FunctionHook(std::shared_ptr<State> state_in, Function hook_in, std::string name_in)
        : state_(std::move(state_in)), hook_(std::move(hook_in)), name_(std::move(name_in)) {}
    std::string name() const override { return name_; }
    Future run(GradBucket& bucket) override { return hook_(*state_, bucket); }
    CommHookState state() const override {
      if constexpr (SavableHookState<State>) {
        return state_->state();
      } else {
        return {};
      }
    }
    void restore(const CommHookState& saved) override {
      if constexpr (SavableHookState<State>) state_->restore(saved);
    }

   private:
    std::shared_ptr<State> state_;
    Function hook_;
    std::string name_;
  };
  return std::make_shared<FunctionHook>(std::move(state), std::move(hook), std::move(name));
}

}  // namespace ddp
