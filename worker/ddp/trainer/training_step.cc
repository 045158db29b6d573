#include "worker/ddp/trainer/training_step.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "worker/ddp/trainer/convert.h"

namespace ddp::trainer {
namespace {

at::Tensor run(TrainerModule& module, const Batch& batch, std::int64_t batch_index, LogSink& sink) {
  const LogScope scope(module, sink);
  at::Tensor loss = module.training_step(batch, batch_index);
  if (!loss.defined() || loss.numel() != 1) {
    throw std::logic_error(fmt::format(
        "{}: training_step() gave {}, expected the loss, a tensor of one number", module.name(),
        loss.defined() ? fmt::format("{} numbers", loss.numel()) : "no tensor"));
  }
  return loss;
}

}  // namespace

TrainingStep::TrainingStep(std::shared_ptr<TrainerModule> module,
                           const std::vector<c10::Device>& devices)
    : module_(std::move(module)) {
  if (devices.size() == 1) return;
  for (std::size_t i = 1; i < devices.size(); ++i) {
    others_.push_back(module_->new_replica());
    others_.back()->to(devices[i], module_->parameters().front().scalar_type());
  }
  replicas_ = std::make_unique<ModuleReplicas>(
      module_, std::vector<std::shared_ptr<torch::nn::Module>>(others_.begin(), others_.end()),
      DataParallelOptions{.devices = devices});
}

at::Tensor TrainingStep::loss_of(const Batch& batch, std::int64_t batch_index, LogSink& sink) {
  return replicas_ ? parallel_loss(batch, batch_index, sink)
                   : run(*module_, batch, batch_index, sink);
}

at::Tensor TrainingStep::parallel_loss(const Batch& batch, std::int64_t batch_index,
                                       LogSink& sink) {
  std::vector<Batch> parts;
  for (const at::Tensor& tensor : batch) {
    const std::vector<at::Tensor> of_tensor = replicas_->scatter(tensor);
    parts.resize(of_tensor.size());
    for (std::size_t i = 0; i < of_tensor.size(); ++i) parts[i].push_back(of_tensor[i]);
  }
  replicas_->replicate(parts.size());
  std::vector<at::Tensor> losses(parts.size());
  std::vector<LogSink> sinks(parts.size());
  const bool counts = sink.batch_size > 0;
  replicas_->parallel_apply(parts.size(), [&](std::size_t i) {
    TrainerModule& replica = i == 0 ? *module_ : *others_[i - 1];
    sinks[i].batch_size = counts ? static_cast<double>(rows_of(parts[i])) : 0;
    losses[i] = run(replica, parts[i], batch_index, sinks[i]);
  });
  at::Tensor sum;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double weight =
        static_cast<double>(rows_of(parts[i])) / static_cast<double>(rows_of(batch));
    const at::Tensor share = losses[i].to(losses[0].device()) * weight;
    sum = i == 0 ? share : sum + share;
    sink.step.merge(sinks[i].step);
    sink.epoch.merge(sinks[i].epoch);
  }
  sink.progress = sinks[0].progress;
  return sum;
}

}  // namespace ddp::trainer
