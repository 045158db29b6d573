#include "worker/ddp/trainer/evaluation.h"

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "worker/data/sampler.h"
#include "worker/ddp/trainer/convert.h"
#include "worker/ddp/trainer/log_sink.h"

namespace ddp::trainer {
namespace {

// The module in evaluation mode. Afterwards each part has its own mode again: some may be frozen.
class EvaluationMode {
 public:
  explicit EvaluationMode(TrainerModule& module) : parts_(module.modules()) {
    for (const auto& part : parts_) was_training_.push_back(part->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    // train() is for a part and all below it, which follow here.
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i]->train(was_training_[i]);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> was_training_;
};

}  // namespace

MetricValues evaluate(const Evaluation& evaluation, TrainerModule& module, ProcessGroup& group,
                      const EvaluationStep& step) {
  const DataLoader& data = evaluation.data;
  DistributedSampler sampler({.dataset_size = data.dataset->size(),
                              .batch_size = data.batch_size,
                              .rank = group.rank(),
                              .world_size = group.size(),
                              .shuffle = false,
                              .drop_last = data.drop_last});
  const std::int64_t batches = evaluation.limit.of(sampler.steps_per_epoch());
  const EvaluationMode mode(module);
  LogSink sink;
  const LogScope scope(module, sink);
  const at::NoGradGuard no_grad;
  for (std::int64_t index = 0; index < batches; ++index) {
    const std::span<const std::int64_t> samples = sampler.next_batch();
    if (samples.empty()) continue;
    sink.batch_size = static_cast<double>(samples.size());
    step(converted(data.dataset->get_batch(samples), evaluation.device, evaluation.type), index,
         samples);
  }
  return sink.epoch.mean(group);
}

}  // namespace ddp::trainer
