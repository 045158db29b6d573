#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace torch::optim {
class Optimizer;
}

namespace ddp {

struct ZeroOptions {
  // step() returns while parameters are still in flight. The module's next forward through
  // DistributedDataParallel waits for them; so does wait(). Call wait() before anything else reads
  // the parameters (such as an evaluation of the bare module).
  bool overlap_with_forward = false;
};

// Makes every rank keep and update a part of the optimizer's state only, so that Adam's memory
// falls from 8 bytes a parameter to 8 / world. PyTorch's ZeroRedundancyOptimizer, with half of its
// traffic: gradients are reduced to the rank that needs them (reduce_scatter, during backward), and
// updated parameters given to all (all_gather), together what one all_reduce moves.
//
//   torch::optim::Adam adam(net->parameters(), options);
//   ddp::DistributedDataParallel<Net> model(net, group);
//   ddp::ZeroRedundancyOptimizer optimizer(adam, model);
//   ...
//   optimizer.zero_grad(); loss(model(input)).backward(); optimizer.step();
//
// The optimizer is any of LibTorch's that updates each element by itself (SGD, Adam, AdamW,
// Adagrad, RMSprop; not LBFGS), before its first step, with any groups. It must outlive this
// object, which takes it over: set hyper-parameters and their schedules on it as before
// (adam.param_groups()[0].options()), but its parameters become flat parts of the model's. The
// model's parameters are moved, too: those of a bucket share one piece of the group's memory, so
// they are sent without a copy.
//
// Results are bit for bit those of the optimizer without this class, from the first step on: sums
// are made in the same order, and an element's update does not depend on what is beside it.
//
// With the model's mixed_precision, everything that is updated has full precision and is divided;
// low-precision values last for a forward and its backward. (In a group of one, gradients are
// rounded to reduce_dtype, too. DistributedDataParallel does not do that, because it has nothing to
// reduce.)
//
// After backward this rank's part of every .grad is the average; the rest holds this rank's own
// values. So use clip_grad_norm_() and the optimizer's own parameters to look at gradients.
// Gradients accumulate under no_sync(), as many backwards as wanted, and one after it.
//
// Used by the training thread. step() and clip_grad_norm_() are collective. In the scope of
// model.join() ranks without input continue to update their part; find_unused_parameters and
// clip_grad_norm_ throw std::logic_error there.
//
// State is saved by Checkpointer::add_optimizer(name, ZeroRedundancyOptimizer&, module), in the
// form in which the optimizer alone would have saved it: such a checkpoint loads on any number of
// ranks, with and without this class.
class ZeroRedundancyOptimizer {
 public:
  // Throws std::invalid_argument naming a parameter that the model does not train, that is not on
  // the CPU, or that has sparse or delayed gradients; also for an optimizer that has stepped or is
  // LBFGS. Throws std::logic_error if the model has a communication hook or has been through a
  // backward. Local.
  template <typename M>
  ZeroRedundancyOptimizer(torch::optim::Optimizer& optimizer, DistributedDataParallel<M>& model,
                          const ZeroOptions& options = {})
      : ZeroRedundancyOptimizer(optimizer, model.core(), options) {}
  ZeroRedundancyOptimizer(torch::optim::Optimizer& optimizer, DistributedDataParallelCore& model,
                          const ZeroOptions& options = {});
  // Afterwards the model can no longer be trained. Parameters keep their values; with
  // overlap_with_forward call wait() first.
  ~ZeroRedundancyOptimizer();
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  // Updates this rank's part and gives it to all ranks. std::logic_error if more than one backward
  // has been reduced since the last step or zero_grad (accumulate under no_sync); CollectiveError.
  void step();
  // Returns when all parameters have arrived. Nothing to do without overlap_with_forward.
  void wait();

  // Scales the averaged gradients so that their norm over all ranks' parts is at most max_norm, and
  // gives the norm that they had, the same bits on all ranks; like ddp::clip_grad_norm_, but summed
  // part by part, so the last bits depend on the number of ranks.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);

  // As DistributedDataParallel's.
  void zero_grad(bool set_to_none = true);

  torch::optim::Optimizer& optimizer();

  // Describes a tensor of the optimizer's groups.
  struct Part {
    at::Tensor tensor;     // In the optimizer's groups.
    at::Tensor parameter;  // The model's.
    std::size_t begin = 0;
    std::size_t elements = 0;
    bool is_common = false;           // The end of a parameter, which every rank has.
    std::vector<std::size_t> counts;  // Of the parameter, by rank; empty: it is not divided.
  };
  const std::vector<Part>& parts() const;
  // Elements of the model's trainable parameters that this rank updates.
  std::size_t elements() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
