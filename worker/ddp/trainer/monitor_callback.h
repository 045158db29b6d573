#pragma once

#include <optional>
#include <string>

#include "worker/ddp/trainer/callback.h"
#include "worker/ddp/trainer/metrics.h"

namespace ddp::trainer {

// A callback that looks at one metric: after each validation; in a training without one, at the end
// of each epoch.
class MonitorCallback : public Callback {
 public:
  void on_validation_end(Trainer& trainer, TrainerModule& module) final;
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) final;
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& saved) override;

 protected:
  // owner: for errors. mode: "min" or "max". min_delta: by how much a value must improve on the
  // best. Throws std::invalid_argument.
  MonitorCallback(std::string owner, std::string metric, const std::string& mode, double min_delta);
  // Returns whether the value is better than the best, and makes it the best if so. NaN never is
  // better.
  bool take(double value);
  // Whether a is better than b.
  bool is_better(double a, double b) const { return is_max_ ? a > b : a < b; }
  std::optional<double> best() const { return best_; }

 private:
  virtual void look_at(Trainer& trainer, double value) = 0;
  double value_in(const MetricValues& metrics) const;

  std::string owner_;
  std::string metric_;
  bool is_max_;
  double min_delta_;
  std::optional<double> best_;
};

}  // namespace ddp::trainer
