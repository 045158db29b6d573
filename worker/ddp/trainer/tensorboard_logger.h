#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/ddp/trainer/logger.h"

namespace ddp {

// Metrics for TensorBoard: a curve for each name, and "epoch", in
// SAVE_DIR/events.out.tfevents.ddp-run. A training that was interrupted leaves the same curves as
// one that was not: no step twice, none missing. Show them by `tensorboard --logdir SAVE_DIR`.
//
// Give each training a folder of its own: one that begins empties the file.
class TensorBoardLogger final : public Logger {
 public:
  explicit TensorBoardLogger(std::string save_dir);
  ~TensorBoardLogger() override;
  // All throw std::runtime_error, naming the file, if it cannot be written.
  void begin(const TrainingPlace& place) override;
  void log_metrics(const TrainingPlace& place, const MetricValues& values) override;
  void log_late(std::int64_t step, const std::string& name, double value) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
