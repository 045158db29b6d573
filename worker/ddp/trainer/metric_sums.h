#pragma once

#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "worker/ddp/trainer/metrics.h"
#include "worker/runtime/process_group.h"

namespace ddp::trainer {

// Weighted sums of what a rank has logged. A value type; one thread.
class MetricSums {
 public:
  void add(const std::string& name, double value, double weight);
  void clear() { sums_.clear(); }
  bool empty() const { return sums_.empty(); }
  // The means over all ranks, which need not have logged the same names. Summed in rank order, so
  // all ranks get the same bits. Collective.
  MetricValues mean(ProcessGroup& group) const;
  // Adds another rank's, or a replica's.
  void merge(const MetricSums& other);

  nlohmann::json state() const;
  void load_state(const nlohmann::json& saved);

 private:
  struct Sum {
    double value = 0;
    double weight = 0;
  };
  std::map<std::string, Sum> sums_;
};

}  // namespace ddp::trainer
