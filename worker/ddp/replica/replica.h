#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/distributed_data_parallel_core.h"
#include "worker/ddp/averaging/no_sync.h"
#include "worker/ddp/hooks/model_averager.h"
#include "worker/ddp/replica/grad_sync.h"
#include "worker/ddp/tensors/trace.h"
#include "worker/runtime/process_group.h"

namespace ddp {

class ZeroRedundancyOptimizer;

struct ReplicaOptions {
  GradSync grad_sync = GradSync::kDdp;
  std::string comm_hook;     // As hooks/hook_text.h reads it; empty: a plain average.
  double bucket_cap_mb = 0;  // 0: what is usual with grad_sync; ddp's does not count.
  // kStep takes gradient_as_bucket_view and device_groups only. With a hook buckets are not
  // rebuilt: what it computes may depend on what is together in one, so they are the same in every
  // process, whether it has taken the first step or resumed.
  DistributedDataParallelOptions ddp = {};
};

// What a training loop needs of data-parallel training, whichever way gradients are averaged: this
// rank's copy of the model. One step is
//   zero_grad(), forward(), backward() on the loss, clip_grad_norm(), step()
// and leaves equal parameters on all ranks. Forward and backward may come several times, all but
// the last while a no_sync() lives. One thread; everything but zero_grad and no_sync is collective
// and throws CollectiveError.
class Replica {
 public:
  // Verifies that the module is the same on all ranks and takes rank 0's parameters and buffers.
  // The optimizer is over the module's parameters and outlives the replica. std::invalid_argument
  // for a module that differs or that cannot be trained so. The group is one of host memory;
  // gradients on other devices go over ddp.device_groups.
  static std::unique_ptr<Replica> make(const ReplicaOptions& options,
                                       const std::shared_ptr<torch::nn::Module>& module,
                                       torch::optim::Optimizer& optimizer,
                                       const std::shared_ptr<ProcessGroup>& group);
  virtual ~Replica() = default;

  virtual void zero_grad() = 0;
  // `compute` runs the module and gives what backward begins from: its output, or a loss.
  virtual at::Tensor forward(const std::function<at::Tensor()>& compute) = 0;
  // While it lives, backward adds to this rank's gradients only. Null where it always does so.
  virtual std::unique_ptr<NoSync> no_sync() = 0;
  // Scales the averaged gradients so that their norm is at most max_norm; gives what it was.
  virtual double clip_grad_norm(double max_norm) = 0;
  // The optimizer's step, and the averaging of the parameters where the communication hook is one
  // that leaves that to be done.
  void step();
  // Gives the buffers (the statistics of batch normalisation) the values they have on rank 0.
  virtual void broadcast_buffers() = 0;
  // Whether steps leave equal parameters on all ranks: not with the hook that communicates nothing.
  bool keeps_ranks_equal() const;
  // Where the replicas train apart for a while (post_localsgd): gives all ranks the average of
  // their parameters, unless they have the same ones. Returns whether anything changed.
  bool bring_together();
  // Records what backward does from now on, in the way that has something to record.
  virtual void set_trace(std::shared_ptr<Trace> trace) = 0;

  // The hook of the options, and what it needs after each step; null without. Their states belong
  // into a checkpoint.
  const std::shared_ptr<CommHook>& comm_hook() const { return hook_; }
  const std::shared_ptr<ModelAverager>& averager() const { return averager_; }
  // Where the optimizer is divided among the ranks: what a checkpoint has to look at instead of it.
  virtual ZeroRedundancyOptimizer* zero() { return nullptr; }

 protected:
  // Collective.
  Replica(const std::string& comm_hook, torch::optim::Optimizer& optimizer,
          const std::shared_ptr<ProcessGroup>& group);
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  ProcessGroup& group() const { return *group_; }

 private:
  virtual void local_step() = 0;

  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<CommHook> hook_;
  std::shared_ptr<ModelAverager> averager_;
};

}  // namespace ddp
