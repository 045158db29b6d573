#pragma once

#include <concepts>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/distributed_data_parallel_core.h"
#include "worker/ddp/averaging/join.h"
#include "worker/ddp/averaging/no_sync.h"
#include "worker/ddp/tensors/outputs.h"

namespace ddp {

// Trains copies of one module on all ranks of a group as if they were one module on the joint
// batch.
//
//   auto group = ddp::ProcessGroup::from_environment();
//   ddp::DistributedDataParallel model(std::make_shared<Net>(), group);
//   torch::optim::SGD optimizer(model.module().parameters(), options);  // Or before wrapping.
//   auto loss = torch::nll_loss(model(batch.data), batch.target);
//   model.zero_grad();
//   loss.backward();   // every .grad is the average over the ranks when this returns
//   optimizer.step();
//
// Construction is collective. It checks that the module is the same on all ranks (else
// std::invalid_argument names the first difference, on every rank) and copies rank 0's parameters
// and buffers to the others. The loss should be a mean over the local batch, and local batches
// should be equal in size; then the averaged gradient is that of the joint batch.
//
// When backward() returns, every .grad is the average over the ranks of what .grad would be without
// the wrapper, earlier accumulation included. A parameter that got no gradient is an error that
// names it, unless find_unused_parameters is set. If a rank's backward throws, its group is
// aborted, so that the others do not wait. A module may have one wrapper at a time, and one
// backward at a time. Gradients computed with create_graph are averaged, but their graph is not;
// torch::autograd::grad returns what is local.
//
// The training thread makes all calls, and every rank makes the same ones: forward in training
// mode, backward, broadcast_buffers. Any of them throws CollectiveError once the group has failed.
//
// The module may be on any device, or on several; inputs are not moved. The option device_groups
// says how gradients of devices other than the CPU travel.
//
// With mixed_precision, parameters have their low-precision type from a forward until its backward
// (or, without gradients, its end): look at them before or after. If that forward throws, they have
// their own type again; if the backward does, from the next forward or the wrapper's end on.
//
// Parameters registered or unfrozen after construction are not reduced. The object keeps the module
// and the group alive.
template <typename M>
class DistributedDataParallel {
 public:
  explicit DistributedDataParallel(std::shared_ptr<M> module, std::shared_ptr<ProcessGroup> group,
                                   const DistributedDataParallelOptions& options = {})
      : module_(checked(std::move(module))),
        core_(std::make_unique<DistributedDataParallelCore>(*module_, std::move(group), options)) {}

  // For torch::nn::Linear and the like, which hold a LinearImpl.
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<M>& module,
                                   std::shared_ptr<ProcessGroup> group,
                                   const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), options) {}

  // Runs the module's forward. Broadcasts the buffers first if the options ask for it.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    DistributedDataParallelCore::Forward forward(*core_, module_->is_training());
    using Output = decltype(module_->forward(cast(std::forward<Arguments>(arguments))...));
    if constexpr (std::is_void_v<Output>) {
      module_->forward(cast(std::forward<Arguments>(arguments))...);
      forward.done();
    } else {
      Output output = module_->forward(cast(std::forward<Arguments>(arguments))...);
      forward.done();
      if (core_->wants_outputs()) core_->watch_outputs(tensors_of_output(output));
      return output;
    }
  }
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }

  // Replaces the averaging of buckets by a hook (see CommHook). Call it once, with the same hook on
  // all ranks, before the first backward or between two. A second call throws std::logic_error.
  void register_comm_hook(std::shared_ptr<CommHook> hook) {
    core_->register_comm_hook(std::move(hook));
  }
  // As in PyTorch: Future hook(State& state, GradBucket& bucket). The hook keeps the state alive.
  template <typename State, typename Function>
  requires std::invocable<Function&, State&, GradBucket&>
  void register_comm_hook(std::shared_ptr<State> state, Function hook) {
    register_comm_hook(make_comm_hook(std::move(state), std::move(hook)));
  }

  // While the guard lives, backward accumulates gradients locally.
  NoSync no_sync() { return NoSync(core_->reducer()); }

  // For different numbers of batches on the ranks: see Join.
  Join join(bool divide_by_initial_world_size = true, bool enable = true,
            bool throw_on_early_termination = false) {
    return Join(*core_, {divide_by_initial_world_size, throw_on_early_termination, enable});
  }
  Join join(const JoinOptions& options) { return Join(*core_, options); }
  // The same around a function.
  template <std::invocable Function>
  void with_join(Function&& train, const JoinOptions& options = {}) {
    Join scope(*core_, options);
    std::forward<Function>(train)();
    scope.finish();
  }

  // Drops the gradients of all trainable parameters, or zeroes them in place. Dropping is faster.
  // It also makes a step independent of the one before, down to the sign of a zero, because
  // autograd adds to whatever it finds.
  void zero_grad(bool set_to_none = true) { core_->zero_grad(set_to_none); }

  // Copies rank 0's buffers to all ranks, for example before an evaluation. The module may be in
  // either mode.
  void broadcast_buffers() { core_->broadcast_buffers(); }
  // Whether the next forward will broadcast the buffers first.
  bool will_sync_module_buffers() const { return core_->will_sync_buffers(module_->is_training()); }

  // Which parameters share a bucket. Pass it to the option bucket_layout of a later process.
  BucketNames bucket_layout() const { return core_->bucket_layout(); }

  DdpStats stats() const { return core_->stats(); }
  // Times are measured in the first ten iterations and then in one of every `iterations`.
  void set_runtime_logging_sample_rate(int iterations) { core_->set_sample_rate(iterations); }

  // What averages during backward. Its header is not installed.
  const Reducer& reducer() const { return core_->reducer(); }
  // For code that works with any module, such as ZeroRedundancyOptimizer.
  DistributedDataParallelCore& core() { return *core_; }

 private:
  static std::shared_ptr<M> checked(std::shared_ptr<M> module) {
    if (!module) throw std::invalid_argument("DistributedDataParallel was given no module");
    return module;
  }

  // With mixed precision, converts floating-point inputs to the parameters' type.
  template <typename Argument>
  decltype(auto) cast(Argument&& argument) const {
    if constexpr (std::is_same_v<std::remove_cvref_t<Argument>, at::Tensor>) {
      const auto type = core_->input_type();
      const bool converts = type && argument.defined() && argument.is_floating_point();
      return converts ? argument.to(*type) : at::Tensor(argument);
    } else {
      return std::forward<Argument>(argument);
    }
  }

  std::shared_ptr<M> module_;
  std::unique_ptr<DistributedDataParallelCore> core_;
};

}  // namespace ddp
