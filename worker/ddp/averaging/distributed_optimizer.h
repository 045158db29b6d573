#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/bucket_names.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/device_group.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

// The second way to train on several ranks, torch_xla's: gradients are reduced at the optimizer's
// step. Reduction does not overlap with backward. It does not depend on backward either, so any
// control flow works: several backwards before a step, parameters that are used now and then,
// alternating losses.
namespace ddp {

class GradientReducer;

struct DistributedOptimizerOptions {
  // Gradients are reduced in buckets that close once they hold this many MiB. 0: one bucket for
  // each element type. (torch_xla's ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB.)
  double bucket_cap_mb = 0;
  // .grad is a view of the reduced bucket. Saves a copy after the reduction, and also the copy
  // before it if gradients are set to zero in place.
  bool gradient_as_bucket_view = false;
  // For parameters on other devices: as DistributedDataParallelOptions::device_groups.
  std::vector<DeviceGroup> device_groups = {};
};

// Wraps an optimizer so that its step uses gradients averaged over the ranks. The optimizer must
// outlive it. It stays usable by itself, with its hyper-parameters and state where they were.
//
//   ddp::broadcast_master_param(*model, *group);
//   torch::optim::SGD sgd(model->parameters(), options);
//   ddp::DistributedOptimizer optimizer(sgd, group);
//   optimizer.zero_grad(); loss.backward(); optimizer.step();
//
// Gradients add up over the backwards before a step; nothing is sent before the step. So each
// backward may take a part of the batch (gradient accumulation). Losses are means over their part,
// so n equal parts need loss / n.
//
// Parameters that require no gradient are skipped. An undefined gradient counts as zero; if it is
// undefined on every rank it stays undefined. A sparse gradient is made dense. In a group of one,
// only a communication hook has an effect.
//
// Used by the training thread. reduce_gradients(), clip_grad_norm_() and step() are collective,
// with parameters of the same number, shapes and types in the same order on all ranks. They throw
// CollectiveError; std::invalid_argument if the parameters differ between ranks, and the group
// stays usable then; and, after aborting the group, std::invalid_argument for a gradient that
// cannot be reduced, or what the hook throws.
class DistributedOptimizer {
 public:
  DistributedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<ProcessGroup> group,
                       const DistributedOptimizerOptions& options = {});
  // `names_of`: the module that names the parameters, for errors and for hooks that save state by
  // name. It must outlive this object. Parameters that it does not have, and all parameters without
  // it, are called "parameter 3" and so on, counted over the optimizer's groups.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& names_of,
                       std::shared_ptr<ProcessGroup> group,
                       const DistributedOptimizerOptions& options = {});
  // Waits for operations in flight.
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // As DistributedDataParallel's. A hook gives the same bits in both modes unless it depends on
  // what else is in a bucket. Call it once, before the first step; otherwise it throws
  // std::logic_error.
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  template <typename State, typename Function>
  void register_comm_hook(std::shared_ptr<State> state, Function hook) {
    register_comm_hook(make_comm_hook(std::move(state), std::move(hook)));
  }

  // Averages the gradients of all parameter groups now; the next step() does not do it again. For
  // code that reads the gradients, or changes them in the same way on all ranks, before the step.
  // What a backward adds in between stays this rank's own.
  void reduce_gradients();
  // Averages the gradients unless reduce_gradients() was called just before, then calls
  // ddp::clip_grad_norm_ on them. Returns the norm that they had, with the same bits on all ranks.
  // If you skip the step because of the norm, call zero_grad().
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);
  // Averages the gradients unless that was done since the last step or zero_grad(), then steps.
  void step();
  // For optimizers that evaluate the loss themselves, such as LBFGS: averages the gradients and the
  // loss after every evaluation, so that all ranks decide alike. Returns the averaged loss.
  at::Tensor step(const std::function<at::Tensor()>& closure);

  // Drops the gradients, or sets them to zero in place. Dropping makes a step independent of the
  // one before, down to the sign of a zero, because autograd adds to whatever it finds. With
  // gradient_as_bucket_view, zeroing saves a copy.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer() { return optimizer_; }
  // Which parameters share a bucket. Empty before the first reduction.
  BucketNames bucket_layout() const;

 private:
  const std::vector<at::Tensor>& parameters();

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<GradientReducer> reducer_;
  std::vector<at::Tensor> parameters_;  // Kept for its memory.
  enum class Gradients { kLocal, kReduced, kClipped } gradients_ = Gradients::kLocal;
};

// Checks that the module is the same on all ranks, as DistributedDataParallel does, then gives
// every rank rank 0's parameters and buffers. Collective. Throws std::invalid_argument naming the
// first difference, or CollectiveError.
void broadcast_master_param(const torch::nn::Module& module, ProcessGroup& group);

}  // namespace ddp
