#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

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
  // A value that became known only after its step, and may come again when the training goes on:
  // drop it if there is one of this name for the step, or for a later one. All values of the name
  // come this way.
  virtual void log_late(std::int64_t /*step*/, const std::string& /*name*/, double /*value*/) {}
};

// A line of JSON for each call: {"epoch": 0, "step": 50, "train_loss": 0.25}. Numbers that are not
// finite are null. One that came late has a line of its own, without "epoch". A training that was
// interrupted leaves the same file as one that was not.
class JsonLogger final : public Logger {
 public:
  explicit JsonLogger(std::filesystem::path path) : path_(std::move(path)) {}
  // All throw std::runtime_error, naming the file, if it cannot be written.
  void begin(const TrainingPlace& place) override;
  void log_metrics(const TrainingPlace& place, const MetricValues& values) override;
  void log_late(std::int64_t step, const std::string& name, double value) override;

 private:
  void keep_lines(std::int64_t step);
  void write(const nlohmann::ordered_json& line);

  std::filesystem::path path_;
  std::map<std::string, std::int64_t> newest_;  // The last step of each name that came late.
  std::ofstream file_;
};

}  // namespace ddp
