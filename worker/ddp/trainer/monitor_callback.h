#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker/ddp/trainer/callback.h"

namespace ddp::trainer {

class Monitor;

// A callback that looks at one metric: after each validation; in a training without one, at the end
// of each epoch.
class MonitorCallback : public Callback {
 public:
  void on_validation_end(Trainer& trainer, TrainerModule& module) final;
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) final;
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& saved) override;

 protected:
  // As Monitor's.
  MonitorCallback(const std::string& owner, const std::string& metric, const std::string& mode,
                  double min_delta);
  ~MonitorCallback() override;
  Monitor& monitor() { return *monitor_; }
  std::optional<double> best() const;

 private:
  virtual void look_at(Trainer& trainer, double value) = 0;

  std::unique_ptr<Monitor> monitor_;
  bool validates_ = false;
};

}  // namespace ddp::trainer
