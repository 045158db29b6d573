#include "worker/ddp/trainer/monitor_callback.h"

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker/ddp/trainer/trainer.h"

namespace ddp::trainer {

MonitorCallback::MonitorCallback(std::string owner, std::string metric, const std::string& mode,
                                 double min_delta)
    : owner_(std::move(owner)),
      metric_(std::move(metric)),
      is_max_(mode == "max"),
      min_delta_(min_delta) {
  if (metric_.empty()) {
    throw std::invalid_argument(owner_ + ": monitor is empty: expected the name of a metric");
  }
  if (mode != "max" && mode != "min") {
    throw std::invalid_argument(
        fmt::format("{}: mode \"{}\": expected \"min\" or \"max\"", owner_, mode));
  }
  if (!(min_delta >= 0)) {
    throw std::invalid_argument(
        fmt::format("{}: min_delta {}: expected at least 0", owner_, min_delta));
  }
}

double MonitorCallback::value_in(const MetricValues& metrics) const {
  const auto found = metrics.find(metric_);
  if (found != metrics.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  throw std::runtime_error(
      fmt::format("{} monitors \"{}\", which nobody has logged; {}", owner_, metric_,
                  names.empty() ? "there are no metrics: call log() in the module's steps"
                                : fmt::format("there are {}", fmt::join(names, ", "))));
}

bool MonitorCallback::take(double value) {
  if (std::isnan(value)) return false;
  const double least = is_max_ ? value - min_delta_ : value + min_delta_;
  if (best_ && !is_better(least, *best_)) return false;
  best_ = value;
  return true;
}

void MonitorCallback::on_validation_end(Trainer& trainer, TrainerModule& /*module*/) {
  look_at(trainer, value_in(trainer.metrics()));
}

void MonitorCallback::on_train_epoch_end(Trainer& trainer, TrainerModule& /*module*/) {
  if (!trainer.validates()) look_at(trainer, value_in(trainer.metrics()));
}

nlohmann::json MonitorCallback::state() const {
  nlohmann::json saved = nlohmann::json::object();
  if (best_) saved["best"] = *best_;
  return saved;
}

void MonitorCallback::load_state(const nlohmann::json& saved) {
  best_.reset();
  if (saved.contains("best")) best_ = saved.at("best").get<double>();
}

}  // namespace ddp::trainer
