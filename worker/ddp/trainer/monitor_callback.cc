#include "worker/ddp/trainer/monitor_callback.h"

#include "worker/ddp/trainer/monitor.h"
#include "worker/ddp/trainer/trainer.h"

namespace ddp::trainer {

MonitorCallback::MonitorCallback(const std::string& owner, const std::string& metric,
                                 const std::string& mode, double min_delta)
    : monitor_(std::make_unique<Monitor>(owner, metric, mode, min_delta)) {}

MonitorCallback::~MonitorCallback() = default;

std::optional<double> MonitorCallback::best() const { return monitor_->best(); }

void MonitorCallback::on_validation_end(Trainer& trainer, TrainerModule& /*module*/) {
  validates_ = true;
  look_at(trainer, monitor_->value_in(trainer.metrics()));
}

void MonitorCallback::on_train_epoch_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (!validates_) look_at(trainer, monitor_->value_in(trainer.metrics()));
}

nlohmann::json MonitorCallback::state() const {
  nlohmann::json saved = {{"validates", validates_}};
  if (monitor_->best()) saved["best"] = *monitor_->best();
  return saved;
}

void MonitorCallback::load_state(const nlohmann::json& saved) {
  validates_ = saved.at("validates").get<bool>();
  monitor_->set_best({});
  if (saved.contains("best")) monitor_->set_best(saved.at("best").get<double>());
}

}  // namespace ddp::trainer
