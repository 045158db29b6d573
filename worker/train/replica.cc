#include "worker/train/replica.h"

#include <utility>
#include <vector>

#include "worker/ddp/broadcast.h"
#include "worker/ddp/clip_grad.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/distributed_optimizer.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

namespace ddp::train {
namespace {

// Averages during backward.
class DdpReplica : public Replica {
 public:
  DdpReplica(const Options& options, std::shared_ptr<Model> model,
             torch::optim::Optimizer& optimizer, const std::shared_ptr<ProcessGroup>& group,
             const std::vector<DeviceGroup>& device_groups)
      : Replica(options, optimizer, group),
        model_(std::move(model), group, ddp_options(options, device_groups)) {
    if (comm_hook()) model_.register_comm_hook(comm_hook());
  }

  void zero_grad() override { model_.zero_grad(); }
  at::Tensor forward(const at::Tensor& input) override { return model_.forward(input); }
  std::unique_ptr<NoSync> no_sync() override {
    return std::unique_ptr<NoSync>(new NoSync(model_.no_sync()));
  }
  void clip_grad_norm(double max_norm) override {
    clip_grad_norm_(model_.module().parameters(), max_norm);
  }
  void broadcast_buffers() override { model_.broadcast_buffers(); }
  void set_trace(std::shared_ptr<Trace> trace) override { model_.set_trace(std::move(trace)); }

 protected:
  DistributedDataParallel<Model>& model() { return model_; }

 private:
  static DistributedDataParallelOptions ddp_options(const Options& options,
                                                    const std::vector<DeviceGroup>& device_groups) {
    DistributedDataParallelOptions result;
    result.device_groups = device_groups;
    if (options.bucket_cap_mb > 0) result.bucket_cap_mb = options.bucket_cap_mb;
    result.gradient_as_bucket_view = options.gradient_as_bucket_view;
    result.broadcast_buffers = options.broadcast_buffers;
    result.find_unused_parameters = options.find_unused_parameters;
    result.static_graph = options.static_graph;
    // What a hook computes may depend on what is together in a bucket. So buckets are the same in
    // every process, whether it has taken the first step or resumed.
    result.rebuild_buckets = options.comm_hook.empty();
    return result;
  }
  void local_step() override { optimizer().step(); }

  DistributedDataParallel<Model> model_;
};

// Likewise, and divides the optimizer among the ranks.
class ZeroReplica final : public DdpReplica {
 public:
  ZeroReplica(const Options& options, std::shared_ptr<Model> own_model,
              torch::optim::Optimizer& optimizer, const std::shared_ptr<ProcessGroup>& group,
              const std::vector<DeviceGroup>& device_groups)
      : DdpReplica(options, std::move(own_model), optimizer, group, device_groups),
        zero_(optimizer, model()) {}

  void zero_grad() override { zero_.zero_grad(); }
  void clip_grad_norm(double max_norm) override { zero_.clip_grad_norm_(max_norm); }
  ZeroRedundancyOptimizer* zero() override { return &zero_; }

 private:
  void local_step() override { zero_.step(); }

  ZeroRedundancyOptimizer zero_;
};

// Averages at the optimizer's step.
class StepReplica final : public Replica {
 public:
  StepReplica(const Options& options, std::shared_ptr<Model> model,
              torch::optim::Optimizer& optimizer, const std::shared_ptr<ProcessGroup>& group,
              const std::vector<DeviceGroup>& device_groups)
      : Replica(options, optimizer, group),
        model_(std::move(model)),
        stepper_(optimizer, *model_, group, step_options(options, device_groups)),
        buffers_(model_->buffers()) {
    if (comm_hook()) stepper_.register_comm_hook(comm_hook());
    broadcast_master_param(*model_, *group);
  }

  void zero_grad() override { stepper_.zero_grad(); }
  at::Tensor forward(const at::Tensor& input) override { return model_->forward(input); }
  std::unique_ptr<NoSync> no_sync() override { return nullptr; }
  void clip_grad_norm(double max_norm) override { stepper_.clip_grad_norm_(max_norm); }
  void broadcast_buffers() override {
    if (!buffers_.empty()) buffers_.run(group(), 0, "buffers");
  }
  void set_trace(std::shared_ptr<Trace> /*trace*/) override {}

 private:
  static DistributedOptimizerOptions step_options(const Options& options,
                                                  const std::vector<DeviceGroup>& device_groups) {
    DistributedOptimizerOptions result;
    result.device_groups = device_groups;
    result.bucket_cap_mb = options.bucket_cap_mb;
    result.gradient_as_bucket_view = options.gradient_as_bucket_view;
    return result;
  }
  void local_step() override { stepper_.step(); }

  std::shared_ptr<Model> model_;
  DistributedOptimizer stepper_;
  CoalescedBroadcast buffers_;
};

}  // namespace

Replica::Replica(const Options& options, torch::optim::Optimizer& optimizer,
                 const std::shared_ptr<ProcessGroup>& group)
    : optimizer_(optimizer), group_(group) {
  if (options.comm_hook.empty()) return;
  hook_ = make_comm_hook_from_text(options.comm_hook, group);
  averager_ = make_model_averager_from_text(options.comm_hook, group);
}

bool Replica::keeps_ranks_equal() const {
  return !hook_ || group_->size() == 1 || !hook_->name().ends_with("noop");
}

bool Replica::bring_together() {
  if (!averager_ || averager_->in_agreement()) return false;
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer_.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  average_model_parameters(parameters, *group_);
  return true;
}

void Replica::step() {
  local_step();
  if (averager_) averager_->average_parameters(optimizer_);
}

std::unique_ptr<Replica> Replica::make(const Options& options, std::shared_ptr<Model> model,
                                       torch::optim::Optimizer& optimizer,
                                       std::shared_ptr<ProcessGroup> group,
                                       const std::vector<DeviceGroup>& device_groups) {
  if (options.grad_sync == GradSync::kDdp) {
    return std::make_unique<DdpReplica>(options, std::move(model), optimizer, group, device_groups);
  }
  if (options.grad_sync == GradSync::kZero1) {
    return std::make_unique<ZeroReplica>(options, std::move(model), optimizer, group,
                                         device_groups);
  }
  return std::make_unique<StepReplica>(options, std::move(model), optimizer, group, device_groups);
}

}  // namespace ddp::train
