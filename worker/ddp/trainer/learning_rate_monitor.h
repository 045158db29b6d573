#pragma once

#include <string>

#include "worker/ddp/trainer/callback.h"

namespace ddp {

// Logs the rate of each group of the optimizer, as "lr" (of several: "lr-0", "lr-1", ...), whenever
// metrics of a step are logged.
class LearningRateMonitor final : public Callback {
 public:
  std::string name() const override { return "LearningRateMonitor"; }
  void on_train_batch_end(Trainer& trainer, TrainerModule& module) override;
};

}  // namespace ddp
