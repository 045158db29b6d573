#include "worker/ddp/trainer/monitor.h"

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::trainer {

Monitor::Monitor(std::string owner, std::string metric, const std::string& mode, double min_delta)
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

double Monitor::value_in(const MetricValues& metrics) const {
  const auto found = metrics.find(metric_);
  if (found != metrics.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  throw std::runtime_error(
      fmt::format("{} monitors \"{}\", which nobody has logged; {}", owner_, metric_,
                  names.empty() ? "there are no metrics: call log() in the module's steps"
                                : fmt::format("there are {}", fmt::join(names, ", "))));
}

bool Monitor::take(double value) {
  if (std::isnan(value)) return false;
  const double least = is_max_ ? value - min_delta_ : value + min_delta_;
  if (best_ && !is_better(least, *best_)) return false;
  best_ = value;
  return true;
}

}  // namespace ddp::trainer
