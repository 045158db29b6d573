#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/ddp/trainer/monitor_callback.h"

namespace ddp {

struct EarlyStoppingOptions {
  std::string monitor = {};
  std::string mode = "min";   // Or "max".
  double min_delta = 0;       // Smaller improvements do not count.
  std::int64_t patience = 3;  // Validations without an improvement after which it stops (0: as 1).
  bool check_finite = true;   // Stops at once when the value is infinite or NaN.
  std::optional<double> stopping_threshold = {};  // Stops as soon as the value is better than this.
  std::optional<double> divergence_threshold =
      {};  // Stops as soon as the value is worse than this.
};

// Stops the training when a metric has stopped improving.
class EarlyStopping final : public trainer::MonitorCallback {
 public:
  // std::invalid_argument for options that are wrong.
  explicit EarlyStopping(const EarlyStoppingOptions& options);
  std::string name() const override { return "EarlyStopping"; }
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& saved) override;

  std::optional<double> best_score() const { return best(); }
  std::int64_t wait_count() const { return wait_; }
  // Why this callback stopped the training; empty if it did not.
  const std::string& reason() const { return reason_; }

 private:
  std::string look(double value);
  void look_at(Trainer& trainer, double value) override;

  EarlyStoppingOptions options_;
  std::int64_t wait_ = 0;
  std::string reason_;
};

}  // namespace ddp
