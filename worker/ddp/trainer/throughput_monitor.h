#pragma once

#include <string>

#include "worker/ddp/trainer/callback.h"

namespace ddp {

// Logs "samples_per_second" of all ranks over the last steps, and "round", which counts how often
// the workers have met (from 0), whenever metrics of a step are logged.
class ThroughputMonitor final : public Callback {
 public:
  std::string name() const override { return "ThroughputMonitor"; }
  void on_train_batch_end(Trainer& trainer, TrainerModule& module) override;
};

}  // namespace ddp
