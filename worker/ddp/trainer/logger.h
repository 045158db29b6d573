#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "worker/ddp/loop/training_place.h"
#include "worker/ddp/trainer/metrics.h"

namespace ddp {

// Where metrics go. Called on rank 0 alone, by the training thread.
class Logger {
 public:
  virtual ~Logger() = default;
  // The first call of a fit(), which continues from this place. Entries of later steps are from
  // work that was lost and will be repeated, so drop them.
  virtual void begin(const TrainingPlace& place) = 0;
  virtual void log_metrics(const TrainingPlace& place, const MetricValues& values) = 0;
};

// A line of JSON for each call: {"epoch": 0, "step": 50, "train_loss": 0.25}. Numbers that are not
// finite are null. A training that was interrupted leaves the same file as one that was not.
class JsonLogger final : public Logger {
 public:
  explicit JsonLogger(std::filesystem::path path) : path_(std::move(path)) {}
  // Both throw std::runtime_error, naming the file, if it cannot be written.
  void begin(const TrainingPlace& place) override;
  void log_metrics(const TrainingPlace& place, const MetricValues& values) override;

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace ddp
