#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/gradient_reducer.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

// The second way to train on several ranks, torch_xla's: gradients are reduced at the optimizer's
// step. It does not overlap with backward, and it knows nothing of backward, so any control flow
// works with it: several backwards before a step, parameters that are used now and then, losses
// that take turns.
namespace ddp {

using DistributedOptimizerOptions = GradientReducerOptions;

// Wraps an optimizer so that its step uses gradients averaged over the ranks. The optimizer must
// outlive it and stays usable by itself: its hyper-parameters and state are where they were.
//
//   ddp::broadcast_master_param(*model, *group);
//   torch::optim::SGD sgd(model->parameters(), options);
//   ddp::DistributedOptimizer optimizer(sgd, group);
//   optimizer.zero_grad(); loss.backward(); optimizer.step();
//
// Gradients add up over the backwards before a step, each of which may be of a part of the batch
// (gradient accumulation): nothing is sent before the step. Losses are means over their part, so n
// equal parts need loss / n.
//
// Used by the training thread. reduce_gradients(), clip_grad_norm_() and step() are collective and
// throw what GradientReducer::reduce does.
class DistributedOptimizer {
 public:
  DistributedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<ProcessGroup> group,
                       const DistributedOptimizerOptions& options = {});
  // `names_of` gives the parameters their names in errors and for hooks that save state by name.
  // Others, and all without it, are "parameter 3", counted over the optimizer's groups. It must
  // outlive the object.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& names_of,
                       std::shared_ptr<ProcessGroup> group,
                       const DistributedOptimizerOptions& options = {});

  // As DistributedDataParallel's: hooks give the same bits in both modes where they do not depend
  // on what else is in a bucket. Once, before the first step; std::logic_error otherwise.
  void register_comm_hook(std::shared_ptr<CommHook> hook) {
    reducer_.register_comm_hook(std::move(hook));
  }
  template <typename State, typename Function>
  void register_comm_hook(std::shared_ptr<State> state, Function hook) {
    register_comm_hook(make_comm_hook(std::move(state), std::move(hook)));
  }
  const std::shared_ptr<CommHook>& comm_hook() const { return reducer_.comm_hook(); }

  // Averages the gradients of all parameter groups now, for who wants to look at them or change
  // them, alike on all ranks, before the step, which then does not do it again. What a backward
  // adds in between is this rank's alone.
  void reduce_gradients();
  // Averages the gradients unless reduce_gradients() was called just before, then
  // ddp::clip_grad_norm_ on them. Gives the norm that they had, the same bits on all ranks. If a
  // step is left out because of it, zero_grad() must follow.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);
  // Averages the gradients unless that was done since the last step or zero_grad(), then steps.
  void step();
  // For optimizers that evaluate the loss themselves, such as LBFGS: averages the gradients and the
  // loss after every evaluation, so that all ranks decide alike. Gives the averaged loss.
  at::Tensor step(const std::function<at::Tensor()>& closure);

  // Drops the gradients, or sets them to zero where they are. Dropping makes a step independent of
  // the one before it to the sign of a zero, since autograd adds to what it finds; with
  // gradient_as_bucket_view zeroes save a copy.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer() { return optimizer_; }
  const GradientReducer& reducer() const { return reducer_; }

 private:
  const std::vector<at::Tensor>& parameters();

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<ProcessGroup> group_;
  GradientReducer reducer_;
  std::vector<at::Tensor> parameters_;  // Kept for its memory.
  enum class Gradients { kLocal, kReduced, kClipped } gradients_ = Gradients::kLocal;
};

// Averages the gradients of the parameters, or of those of all groups of the optimizer, in memory
// that is allocated for this call, after comparing the parameters of the ranks: for a call now and
// then. A training loop has a DistributedOptimizer or a GradientReducer, which do both once.
void reduce_gradients(const std::vector<at::Tensor>& parameters, ProcessGroup& group);
void reduce_gradients(torch::optim::Optimizer& optimizer, ProcessGroup& group);
// The same, then the optimizer's step.
void optimizer_step(torch::optim::Optimizer& optimizer, ProcessGroup& group);

// Checks that the module is the same on all ranks, as DistributedDataParallel does, then gives
// every rank rank 0's parameters and buffers. Collective. Throws std::invalid_argument naming the
// first difference, or CollectiveError.
void broadcast_master_param(const torch::nn::Module& module, ProcessGroup& group);

}  // namespace ddp
