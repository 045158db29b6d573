#include "worker/train/replica.h"

#include <utility>

#include "worker/ddp/broadcast.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/distributed_optimizer.h"

namespace ddp::train {
namespace {

// Averages during backward.
class DdpReplica final : public Replica {
 public:
  DdpReplica(std::shared_ptr<Model> model, torch::optim::Optimizer& optimizer,
             std::shared_ptr<ProcessGroup> group)
      : model_(std::move(model), std::move(group), options()), optimizer_(optimizer) {}

  void zero_grad() override { model_.zero_grad(); }
  at::Tensor forward(const at::Tensor& input) override { return model_.forward(input); }
  void step() override { optimizer_.step(); }
  void broadcast_buffers() override { model_.broadcast_buffers(); }

 private:
  static DistributedDataParallelOptions options() {
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    return options;
  }

  DistributedDataParallel<Model> model_;
  torch::optim::Optimizer& optimizer_;
};

// Averages in one piece at the optimizer's step.
class StepReplica final : public Replica {
 public:
  StepReplica(std::shared_ptr<Model> model, torch::optim::Optimizer& optimizer,
              std::shared_ptr<ProcessGroup> group)
      : model_(std::move(model)),
        group_(std::move(group)),
        optimizer_(optimizer, group_),
        buffers_(model_->buffers()) {
    broadcast_master_param(*model_, *group_);
  }

  void zero_grad() override { optimizer_.zero_grad(); }
  at::Tensor forward(const at::Tensor& input) override { return model_->forward(input); }
  void step() override { optimizer_.step(); }
  void broadcast_buffers() override {
    if (!buffers_.empty()) buffers_.run(*group_, 0, "buffers");
  }

 private:
  std::shared_ptr<Model> model_;
  std::shared_ptr<ProcessGroup> group_;
  DistributedOptimizer optimizer_;
  CoalescedBroadcast buffers_;
};

}  // namespace

std::unique_ptr<Replica> Replica::make(GradSync mode, std::shared_ptr<Model> model,
                                       torch::optim::Optimizer& optimizer,
                                       std::shared_ptr<ProcessGroup> group) {
  if (mode == GradSync::kDdp) {
    return std::make_unique<DdpReplica>(std::move(model), optimizer, std::move(group));
  }
  return std::make_unique<StepReplica>(std::move(model), optimizer, std::move(group));
}

}  // namespace ddp::train
