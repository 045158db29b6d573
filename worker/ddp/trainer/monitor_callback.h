#pragma once

#include <string>

#include "worker/ddp/trainer/callback.h"
#include "worker/ddp/trainer/monitor.h"

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
  // As Monitor's.
  MonitorCallback(const std::string& owner, const std::string& metric, const std::string& mode,
                  double min_delta)
      : monitor_(owner, metric, mode, min_delta) {}
  const Monitor& monitor() const { return monitor_; }
  Monitor& monitor() { return monitor_; }

 private:
  virtual void look_at(Trainer& trainer, double value) = 0;

  Monitor monitor_;
  bool validates_ = false;
};

}  // namespace ddp::trainer
