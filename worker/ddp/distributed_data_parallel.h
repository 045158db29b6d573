#pragma once

#include <memory>
#include <stdexcept>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "worker/ddp/data_parallel_core.h"
#include "worker/ddp/no_sync.h"

namespace ddp {

// Trains copies of one module on all ranks of a group as if they were one module on the joint
// batch.
//
//   auto group = ddp::ProcessGroup::from_environment();
//   ddp::DistributedDataParallel model(std::make_shared<Net>(), group);
//   torch::optim::SGD optimizer(model.module().parameters(), options);   // after wrapping or
//   before auto loss = torch::nll_loss(model(batch.data), batch.target); optimizer.zero_grad();
//   loss.backward();      // every .grad is the average over the ranks when this returns
//   optimizer.step();
//
// Construction is collective. It checks that the module is the same on all ranks (else
// std::invalid_argument names the first difference, on every rank) and copies rank 0's parameters
// and buffers to the others. The loss should be a mean over the local batch and local batches equal
// in size; then the average of the gradients is that of the joint batch.
//
// What backward does, what each failure leaves, and what it does not support stands in reducer.h.
// All calls are made by the training thread, and every rank makes the same ones: forward in
// training mode, backward, broadcast_buffers. Any of them throws CollectiveError once the group has
// failed.
//
// Parameters registered or unfrozen after construction are not reduced. The object keeps the module
// and the group alive.
template <typename M>
class DistributedDataParallel {
 public:
  explicit DistributedDataParallel(std::shared_ptr<M> module, std::shared_ptr<ProcessGroup> group,
                                   const DistributedDataParallelOptions& options = {})
      : module_(checked(std::move(module))),
        core_(std::make_unique<DataParallelCore>(*module_, std::move(group), options)) {}

  // From torch::nn::Linear and its like, which are holders of LinearImpl.
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<M>& module,
                                   std::shared_ptr<ProcessGroup> group,
                                   const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), options) {}

  // The module's forward. Brings the buffers up to date first, where options say so.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    core_->before_forward(module_->is_training());
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }
  const std::shared_ptr<M>& module_ptr() const { return module_; }

  // While the guard lives, backward accumulates gradients locally.
  NoSync no_sync() { return NoSync(core_->reducer()); }

  // Drops the gradients of all trainable parameters, or zeroes them where they are. Dropping is
  // faster, and it makes a step independent of the one before it to the sign of a zero: autograd
  // adds to what it finds.
  void zero_grad(bool set_to_none = true) { core_->reducer().zero_grad(set_to_none); }

  // Copies rank 0's buffers to all ranks, in whatever mode the module is: before an evaluation, for
  // example.
  void broadcast_buffers() { core_->broadcast_buffers(); }

  const Reducer& reducer() const { return core_->reducer(); }

 private:
  static std::shared_ptr<M> checked(std::shared_ptr<M> module) {
    if (!module) throw std::invalid_argument("DistributedDataParallel was given no module");
    return module;
  }

  std::shared_ptr<M> module_;
  std::unique_ptr<DataParallelCore> core_;
};

}  // namespace ddp
