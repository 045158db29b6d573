#pragma once

#include <optional>
#include <string>

#include "worker/ddp/trainer/metrics.h"

namespace ddp::trainer {

// A metric that a callback monitors, and the best value so far.
class Monitor {
 public:
  // mode: "min" or "max". min_delta: by how much a value must improve on the best. Throws
  // std::invalid_argument naming `owner`.
  Monitor(std::string owner, std::string metric, const std::string& mode, double min_delta);

  // Throws std::runtime_error, which lists the logged metrics, if this one is not among them.
  double value_in(const MetricValues& metrics) const;
  // Returns whether the value is better than the best, and makes it the best if so. NaN never is
  // better.
  bool take(double value);
  // Whether a is better than b.
  bool is_better(double a, double b) const { return is_max_ ? a > b : a < b; }

  const std::string& metric() const { return metric_; }
  std::optional<double> best() const { return best_; }
  void set_best(std::optional<double> best) { best_ = best; }

 private:
  std::string owner_;
  std::string metric_;
  bool is_max_;
  double min_delta_;
  std::optional<double> best_;
};

}  // namespace ddp::trainer
