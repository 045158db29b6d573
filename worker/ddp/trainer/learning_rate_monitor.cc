#include "worker/ddp/trainer/learning_rate_monitor.h"

#include <vector>

#include "worker/ddp/trainer/trainer.h"

namespace ddp {

void LearningRateMonitor::on_train_batch_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (!trainer.logs_this_step()) return;
  const std::vector<double> rates = trainer.learning_rates();
  MetricValues values;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    values[rates.size() == 1 ? "lr" : "lr-" + std::to_string(i)] = rates[i];
  }
  trainer.log_metrics(values);
}

}  // namespace ddp
