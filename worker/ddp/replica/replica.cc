#include "worker/ddp/replica/replica.h"

#include <utility>

#include "worker/ddp/averaging/clip_grad.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/tensors/broadcast.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/outputs.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

namespace ddp {
namespace {

// Averages during backward.
class DdpReplica : public Replica {
 public:
  DdpReplica(const ReplicaOptions& options, std::shared_ptr<torch::nn::Module> module,
             torch::optim::Optimizer& optimizer, const std::shared_ptr<ProcessGroup>& group)
      : Replica(options.comm_hook, optimizer, group),
        module_(std::move(module)),
        core_(*module_, group, ddp_options(options)) {
    if (comm_hook()) core_.register_comm_hook(comm_hook());
  }

  void zero_grad() override { core_.zero_grad(/*set_to_none=*/true); }
  at::Tensor forward(const std::function<at::Tensor()>& compute) override {
    DistributedDataParallelCore::Forward forward(core_, module_->is_training());
    at::Tensor output = compute();
    forward.done();
    if (core_.wants_outputs()) core_.watch_outputs(tensors_of_output(output));
    return output;
  }
  std::unique_ptr<NoSync> no_sync() override {
    return std::unique_ptr<NoSync>(new NoSync(core_.reducer()));
  }
  double clip_grad_norm(double max_norm) override {
    return clip_grad_norm_(module_->parameters(), max_norm);
  }
  void broadcast_buffers() override { core_.broadcast_buffers(); }

 protected:
  DistributedDataParallelCore& core() { return core_; }

 private:
  static DistributedDataParallelOptions ddp_options(const ReplicaOptions& options) {
    DistributedDataParallelOptions result = options.ddp;
    result.bucket_cap_mb = DistributedDataParallelOptions().bucket_cap_mb;
    if (options.bucket_cap_mb > 0) result.bucket_cap_mb = options.bucket_cap_mb;
    result.rebuild_buckets = result.rebuild_buckets && options.comm_hook.empty();
    return result;
  }
  void local_step() override { optimizer().step(); }

  std::shared_ptr<torch::nn::Module> module_;
  DistributedDataParallelCore core_;
};

// Likewise, and divides the optimizer among the ranks.
class ZeroReplica final : public DdpReplica {
 public:
  ZeroReplica(const ReplicaOptions& options, std::shared_ptr<torch::nn::Module> own_module,
              torch::optim::Optimizer& optimizer, const std::shared_ptr<ProcessGroup>& group)
      : DdpReplica(options, std::move(own_module), optimizer, group), zero_(optimizer, core()) {}

  void zero_grad() override { zero_.zero_grad(); }
  double clip_grad_norm(double max_norm) override { return zero_.clip_grad_norm_(max_norm); }
  ZeroRedundancyOptimizer* zero() override { return &zero_; }

 private:
  void local_step() override { zero_.step(); }

  ZeroRedundancyOptimizer zero_;
};

// Averages at the optimizer's step.
class StepReplica final : public Replica {
 public:
  StepReplica(const ReplicaOptions& options, std::shared_ptr<torch::nn::Module> module,
              torch::optim::Optimizer& optimizer, const std::shared_ptr<ProcessGroup>& group)
      : Replica(options.comm_hook, optimizer, group),
        module_(std::move(module)),
        stepper_(optimizer, *module_, group, step_options(options)),
        buffers_(module_->buffers()) {
    if (comm_hook()) stepper_.register_comm_hook(comm_hook());
    broadcast_master_param(*module_, *group);
  }

  void zero_grad() override { stepper_.zero_grad(); }
  at::Tensor forward(const std::function<at::Tensor()>& compute) override { return compute(); }
  std::unique_ptr<NoSync> no_sync() override { return nullptr; }
  double clip_grad_norm(double max_norm) override { return stepper_.clip_grad_norm_(max_norm); }
  void broadcast_buffers() override {
    if (!buffers_.empty()) buffers_.run(group(), 0, "buffers");
  }

 private:
  static DistributedOptimizerOptions step_options(const ReplicaOptions& options) {
    DistributedOptimizerOptions result;
    result.device_groups = options.ddp.device_groups;
    result.bucket_cap_mb = options.bucket_cap_mb;
    result.gradient_as_bucket_view = options.ddp.gradient_as_bucket_view;
    return result;
  }
  void local_step() override { stepper_.step(); }

  std::shared_ptr<torch::nn::Module> module_;
  DistributedOptimizer stepper_;
  CoalescedBroadcast buffers_;
};

}  // namespace

Replica::Replica(const std::string& comm_hook, torch::optim::Optimizer& optimizer,
                 const std::shared_ptr<ProcessGroup>& group)
    : optimizer_(optimizer), group_(group) {
  if (comm_hook.empty()) return;
  hook_ = make_comm_hook_from_text(comm_hook, group);
  averager_ = make_model_averager_from_text(comm_hook, group);
}

bool Replica::keeps_ranks_equal() const {
  return !hook_ || group_->size() == 1 || !hook_->name().ends_with("noop");
}

bool Replica::bring_together() {
  if (!averager_ || averager_->in_agreement()) return false;
  average_model_parameters(parameters_of(optimizer_), *group_);
  return true;
}

void Replica::step() {
  local_step();
  if (averager_) averager_->average_parameters(optimizer_);
}

std::unique_ptr<Replica> Replica::make(const ReplicaOptions& options,
                                       const std::shared_ptr<torch::nn::Module>& module,
                                       torch::optim::Optimizer& optimizer,
                                       const std::shared_ptr<ProcessGroup>& group) {
  if (options.grad_sync == GradSync::kDdp) {
    return std::make_unique<DdpReplica>(options, module, optimizer, group);
  }
  if (options.grad_sync == GradSync::kZero1) {
    return std::make_unique<ZeroReplica>(options, module, optimizer, group);
  }
  return std::make_unique<StepReplica>(options, module, optimizer, group);
}

}  // namespace ddp
