#include "worker/ddp/trainer/evaluation.h"

#include <ATen/core/grad_mode.h>

#include "worker/data/sampler.h"
#include "worker/ddp/trainer/convert.h"

namespace ddp::trainer {
namespace {

// The module in evaluation mode, its log() in a sink of this evaluation's.
class Scope {
 public:
  explicit Scope(TrainerModule& module) : module_(module), was_training_(module.is_training()) {
    module_.eval();
    module_.log_to(&sink_);
  }
  ~Scope() {
    module_.log_to(nullptr);
    module_.train(was_training_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  TrainerModule::Sink& sink() { return sink_; }

 private:
  TrainerModule& module_;
  const bool was_training_;
  TrainerModule::Sink sink_;
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
                              .drop_last = data.drop_last,
                              .even = false});
  const std::int64_t batches = evaluation.limit.of(sampler.steps_per_epoch());
  Scope scope(module);
  const at::NoGradGuard no_grad;
  for (std::int64_t index = 0; index < batches; ++index) {
    const std::span<const std::int64_t> samples = sampler.next_batch();
    if (samples.empty()) continue;
    scope.sink().batch_size = static_cast<double>(samples.size());
    step(converted(data.dataset->get_batch(samples), evaluation.device, evaluation.type), index,
         samples);
  }
  return scope.sink().epoch.mean(group);
}

}  // namespace ddp::trainer
