#include "worker/ddp/trainer/early_stopping.h"

#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "worker/ddp/trainer/trainer.h"

namespace ddp {

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options)
    : MonitorCallback("EarlyStopping", options.monitor, options.mode, options.min_delta),
      options_(options) {
  if (options.patience < 0) {
    throw std::invalid_argument(
        fmt::format("EarlyStopping: patience {}: expected at least 0", options.patience));
  }
}

// The reason to stop; empty: continue.
std::string EarlyStopping::look(double value) {
  const std::string& name = options_.monitor;
  if (options_.check_finite && !std::isfinite(value)) return fmt::format("{} is {}", name, value);
  if (options_.stopping_threshold && is_better(value, *options_.stopping_threshold)) {
    return fmt::format("{} {} is better than {}", name, value, *options_.stopping_threshold);
  }
  if (options_.divergence_threshold && is_better(*options_.divergence_threshold, value)) {
    return fmt::format("{} {} is worse than {}", name, value, *options_.divergence_threshold);
  }
  if (take(value)) {
    wait_ = 0;
    return {};
  }
  if (++wait_ < options_.patience) return {};
  return fmt::format("{} has not been better than {} {} times", name, *best(), wait_);
}

void EarlyStopping::look_at(Trainer& trainer, double value) {
  reason_ = look(value);
  if (!reason_.empty()) trainer.stop(reason_);
}

nlohmann::json EarlyStopping::state() const {
  nlohmann::json saved = MonitorCallback::state();
  saved["wait"] = wait_;
  saved["reason"] = reason_;
  return saved;
}

void EarlyStopping::load_state(const nlohmann::json& saved) {
  MonitorCallback::load_state(saved);
  wait_ = saved.at("wait").get<std::int64_t>();
  reason_ = saved.value("reason", "");
}

}  // namespace ddp
