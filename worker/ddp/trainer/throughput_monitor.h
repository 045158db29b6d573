#pragma once

#include <string>

#include "worker/ddp/trainer/callback.h"

namespace ddp {

// Logs, whenever metrics of a step are logged, "samples_per_second" of all ranks over the last
// steps, "round", which counts how often the workers have met (from 0), and "restarts", how often
// the job has started workers again so far. For the step of each checkpoint
// "checkpoint_seconds", how long it has held the training up, and "checkpoint_write_seconds", how
// long it took until it was on the disk.
class ThroughputMonitor final : public Callback {
 public:
  std::string name() const override { return "ThroughputMonitor"; }
  void on_train_batch_end(Trainer& trainer, TrainerModule& module) override;
  void on_checkpoint(Trainer& trainer, double seconds) override;
  void on_checkpoint_written(Trainer& trainer, std::int64_t step, double seconds) override;
};

}  // namespace ddp
