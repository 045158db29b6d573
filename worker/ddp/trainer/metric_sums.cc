#include "worker/ddp/trainer/metric_sums.h"

#include <vector>

#include "worker/ddp/tensors/mesh_reduce.h"

namespace ddp::trainer {

void MetricSums::add(const std::string& name, double value, double weight) {
  Sum& sum = sums_[name];
  sum.value += value * weight;
  sum.weight += weight;
}

void MetricSums::merge(const MetricSums& other) {
  for (const auto& [name, more] : other.sums_) {
    Sum& sum = sums_[name];
    sum.value += more.value;
    sum.weight += more.weight;
  }
}

MetricValues MetricSums::mean(ProcessGroup& group) const {
  const MetricSums all = mesh_reduce(
      "metrics", state(),
      [](const std::vector<nlohmann::json>& ranks) {
        MetricSums together;
        for (const nlohmann::json& rank : ranks) {
          MetricSums one;
          one.load_state(rank);
          together.merge(one);
        }
        return together;
      },
      group);
  MetricValues means;
  for (const auto& [name, sum] : all.sums_) means[name] = sum.value / sum.weight;
  return means;
}

nlohmann::json MetricSums::state() const {
  nlohmann::json saved = nlohmann::json::object();
  for (const auto& [name, sum] : sums_) saved[name] = {sum.value, sum.weight};
  return saved;
}

void MetricSums::load_state(const nlohmann::json& saved) {
  sums_.clear();
  for (const auto& [name, sum] : saved.items()) {
    sums_[name] = {sum.at(0).get<double>(), sum.at(1).get<double>()};
  }
}

}  // namespace ddp::trainer
