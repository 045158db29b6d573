#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/averaging/distributed_data_parallel_core.h"
#include "worker/ddp/averaging/no_sync.h"
#include "worker/ddp/hooks/model_averager.h"
#include "worker/ddp/replica/grad_sync.h"
#include "worker/runtime/process_group.h"

namespace ddp {

class ZeroRedundancyOptimizer;

struct ReplicaOptions {
  GradSync grad_sync = GradSync::kDdp;
  std::string comm_hook;     // In the form of hooks/hook_text.h; empty: a plain average.
  double bucket_cap_mb = 0;  // 0: grad_sync's default. Replaces ddp.bucket_cap_mb.
  // kStep uses gradient_as_bucket_view and device_groups only. With a hook, buckets are not
  // rebuilt: its result may depend on which gradients share a bucket, so they must be the same in a
  // process that took the first step and in one that resumed.
  DistributedDataParallelOptions ddp = {};
};

// This rank's copy of the model: one interface for training loops over all ways of averaging
// gradients. One step is
//   zero_grad(), forward(), backward() on the loss, clip_grad_norm(), step()
// and leaves equal parameters on all ranks. Forward and backward may come several times, all but
// the last while a no_sync() lives. One thread; everything but zero_grad and no_sync is collective
// and throws CollectiveError.
class Replica {
 public:
  // Verifies that the module is the same on all ranks and takes rank 0's parameters and buffers.
  // The optimizer is over the module's parameters and must outlive the replica. Throws
  // std::invalid_argument for a module that differs between ranks or cannot be trained in this way.
  // The group is for host memory; gradients on other devices go over ddp.device_groups.
  static std::unique_ptr<Replica> make(const ReplicaOptions& options,
                                       const std::shared_ptr<torch::nn::Module>& module,
                                       torch::optim::Optimizer& optimizer,
                                       const std::shared_ptr<ProcessGroup>& group);
  virtual ~Replica() = default;

  virtual void zero_grad() = 0;
  // `compute` runs the module and returns the tensor that backward begins from: its output, or a
  // loss.
  virtual at::Tensor forward(const std::function<at::Tensor()>& compute) = 0;
  // While it lives, backward adds to this rank's gradients only. Null if backward always does so.
  virtual std::unique_ptr<NoSync> no_sync() = 0;
  // Scales the averaged gradients so that their norm is at most max_norm. Returns the norm that
  // they had.
  virtual double clip_grad_norm(double max_norm) = 0;
  // Makes the optimizer's step; then averages the parameters if the communication hook needs that.
  void step();
  // Gives the buffers (the statistics of batch normalisation) the values they have on rank 0.
  virtual void broadcast_buffers() = 0;
  // Whether steps leave equal parameters on all ranks. False with the hook that communicates
  // nothing.
  bool keeps_ranks_equal() const;
  // For replicas that train apart for a while (post_localsgd): gives all ranks the average of their
  // parameters, unless they are equal already. Returns whether anything changed.
  bool bring_together();
  // Makes what each rank has of the logical ranks' state the same on all. Call it before a
  // checkpoint or a commit.
  virtual void gather() {}

  // The options' hook, and the averager that it needs after each step; null if there is none. Save
  // the state of both in checkpoints.
  const std::shared_ptr<CommHook>& comm_hook() const { return hook_; }
  const std::shared_ptr<ModelAverager>& averager() const { return averager_; }
  // If the optimizer is divided among the ranks: what a checkpoint must save in its place.
  virtual ZeroRedundancyOptimizer* zero() { return nullptr; }
  // With logical ranks: what a checkpoint must save in place of the process's generator.
  virtual CommHook* logical_ranks() { return nullptr; }

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
