#include "worker/ddp/trainer/trainer_module.h"

#include <stdexcept>

#include <fmt/format.h>

#include "worker/ddp/trainer/log_sink.h"

namespace ddp {
namespace {

[[noreturn]] void lacks(const torch::nn::Module& module, const char* function, const char* use) {
  throw std::logic_error(
      fmt::format("{} has no {}(), which {} needs: override it", module.name(), function, use));
}

}  // namespace

void TrainerModule::validation_step(const Batch& /*batch*/, std::int64_t /*batch_index*/) {
  lacks(*this, "validation_step", "a validation");
}

void TrainerModule::test_step(const Batch& batch, std::int64_t batch_index) {
  validation_step(batch, batch_index);
}

at::Tensor TrainerModule::predict_step(const Batch& /*batch*/, std::int64_t /*batch_index*/) {
  lacks(*this, "predict_step", "predict()");
}

std::shared_ptr<TrainerModule> TrainerModule::new_replica() const {
  lacks(*this, "new_replica", "strategy \"dp\"");
}

void TrainerModule::log(const std::string& name, double value, const LogOptions& options) {
  if (sink_ == nullptr) {
    throw std::logic_error(fmt::format("log(\"{}\") was called outside of a step", name));
  }
  if (sink_->batch_size == 0) return;  // A sample that another rank counts.
  const double weight = options.batch_size < 0 ? sink_->batch_size : options.batch_size;
  if (options.on_step) sink_->step.add(name, value, weight);
  sink_->epoch.add(name, value, weight);
  if (options.prog_bar) sink_->progress[name] = value;
}

void TrainerModule::log(const std::string& name, const at::Tensor& value,
                        const LogOptions& options) {
  log(name, value.item<double>(), options);
}

}  // namespace ddp
