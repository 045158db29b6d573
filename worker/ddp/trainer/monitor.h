#pragma once

#include <optional>
#include <string>

#include "worker/ddp/trainer/metrics.h"

namespace ddp::trainer {

// A metric that callbacks look at, and the best value that it had.
class Monitor {
 public:
  // mode: "min" or "max". min_delta: by how much a value has to be better than the best. Throws
  // std::invalid_argument, naming `owner`.
  Monitor(std::string owner, std::string metric, const std::string& mode, double min_delta);

  // Throws std::runtime_error, with the metrics that there are, if this one is not among them.
  double value_in(const MetricValues& metrics) const;
  // Whether the value is better than the best, which it is then. What is no number never is.
  bool take(double value);
  // a before b.
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
