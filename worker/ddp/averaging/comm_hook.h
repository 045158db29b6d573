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

// What a hook must carry over a restart so that training continues as if there had been none.
// Tensors are named after parameters ("error/conv1.weight"), never after buckets, whose layout may
// change.
struct CommHookState {
  nlohmann::json values;  // The same on all ranks: counters, generator states. Null: none.
  std::map<std::string, at::Tensor> replicated;  // The same on all ranks.
  // This rank's own, such as its residuals (what compression has lost so far). All ranks use the
  // same names.
  std::map<std::string, at::Tensor> per_rank;
};

// Replaces the averaging of a bucket (DistributedDataParallel::register_comm_hook). PyTorch's
// communication hooks as an interface, with state that can be saved.
//
// Hooks work on host memory. If the model is on another device, a hook gets a copy of the
// gradients, and its result is copied back.
//
// A thread of backward calls run() as soon as a bucket is full, in the order of the buckets'
// indices. The gradients are not divided by the size of the group: a hook that averages must
// divide. The value of the future that it returns becomes the gradients. It has as many elements as
// the buffer, in any floating-point type, and may be the buffer itself, changed in place. run() and
// its continuations may issue operations, the same ones on all ranks. An exception ends the
// backward and aborts the reducer's group.
class CommHook {
 public:
  virtual ~CommHook() = default;

  // The name that ddp-train's --comm-hook uses, such as "powersgd".
  virtual std::string name() const = 0;
  virtual Future run(GradBucket& bucket) = 0;

  // The state after the last step; its tensors are copies or will not change. Called between
  // backwards, like restore(). It may wait for operations of the group; the caller gets their
  // CollectiveError.
  virtual CommHookState state() const { return {}; }
  // Restores the state() of an earlier process. If the number of ranks has changed, every rank's
  // per_rank is the mean over the former ranks, so that the residuals have the same average as
  // before. Throws std::invalid_argument naming what does not fit; the hook is unchanged then.
  virtual void restore(const CommHookState& /*state*/) {}
};

// A type whose state can be saved and restored as CommHook's can.
template <typename State>
concept SavableHookState = requires(const State& saved, State& restored,
                                    const CommHookState& state) {
  { saved.state() } -> std::same_as<CommHookState>;
  restored.restore(state);
};

// A hook from a function, as PyTorch's register_comm_hook takes it: `Future hook(State&,
// GradBucket&)`. `state` is whatever the function needs; the hook keeps it alive, and saves and
// restores it if it is a SavableHookState.
template <typename State, typename Function>
std::shared_ptr<CommHook> make_comm_hook(std::shared_ptr<State> state, Function hook,
                                         std::string name = "user") {
  static_assert(
      SavableHookState<State> ||
          !requires(State & half, const CommHookState& saved) { half.restore(saved); },
      "what has restore() needs CommHookState state() const, or it would not be saved");
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
