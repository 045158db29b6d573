#include "worker/ddp/averaging/reduction_plan.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "worker/ddp/tensors/tensors.h"

namespace ddp {

using Kind = GradientBuckets::Kind;

ReductionPlanner::ReductionPlanner(const std::vector<NamedTensor>& parameters, Options options)
    : options_(std::move(options)), is_delayed_(parameters.size(), false) {
  std::vector<c10::Device> devices;
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) {
      throw std::invalid_argument(fmt::format("{} requires no gradient", parameter.name));
    }
    DType type = gradient_type(parameter.tensor, parameter.name);
    if (options_.element_type) {
      type = gradient_type(at::empty({0}, *options_.element_type), "the type of reduction");
    }
    const auto count = static_cast<std::size_t>(parameter.tensor.numel());
    const int device = device_number(parameter.tensor.device(), devices);
    parameters_.push_back({count * dtype_bytes(type), kind_number(type, device)});
    names_.push_back(parameter.name);
  }
  for (const std::string& name : options_.sparse) {
    parameters_[index_of(name, "sparse parameters")].alone = true;
  }
  for (const std::string& name : options_.delayed) {
    const std::size_t index = index_of(name, "delay_all_reduce_named_params");
    if (parameters_[index].alone) {
      throw std::invalid_argument(fmt::format(
          "delay_all_reduce_named_params: the gradient of {} is sparse; it travels alone", name));
    }
    is_delayed_[index] = true;
  }
  if (options_.delayed.empty() != options_.delay_until.empty()) {
    throw std::invalid_argument(
        "delay_all_reduce_named_params and param_to_hook_all_reduce are given together or not at "
        "all");
  }
  if (!options_.delay_until.empty()) {
    delay_until_ = index_of(options_.delay_until, "param_to_hook_all_reduce");
  }
}

std::size_t ReductionPlanner::index_of(const std::string& name, const char* option) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  if (at == names_.end()) {
    throw std::invalid_argument(
        fmt::format("{}: there is no trainable parameter '{}'", option, name));
  }
  return static_cast<std::size_t>(at - names_.begin());
}

Kind ReductionPlanner::kind_of(const buckets::BucketLayout& layout) const {
  const std::size_t first = layout.slots.front().parameter;
  if (parameters_[first].alone) return Kind::kSparse;
  return is_delayed_[first] ? Kind::kPlain : Kind::kOrdinary;
}

GradientBuckets::Plan ReductionPlanner::first() const {
  std::vector<std::size_t> order;
  for (std::size_t left = names_.size(); left > 0; --left) order.push_back(left - 1);
  return in_order(order);
}

GradientBuckets::Plan ReductionPlanner::in_order(const std::vector<std::size_t>& order) const {
  std::vector<std::size_t> ordinary;
  std::map<int, std::vector<std::size_t>> delayed;
  for (const std::size_t index : order) {
    if (is_delayed_[index]) {
      delayed[parameters_[index].type].push_back(index);
    } else {
      ordinary.push_back(index);
    }
  }
  GradientBuckets::Plan plan;
  plan.layouts = buckets::plan_buckets(parameters_, ordinary, options_.limits);
  const auto holds_trigger = [&](const buckets::BucketLayout& layout) {
    return std::any_of(
        layout.slots.begin(), layout.slots.end(),
        [&](const buckets::BucketSlot& slot) { return slot.parameter == *delay_until_; });
  };
  if (!delayed.empty()) {
    auto at = std::find_if(plan.layouts.begin(), plan.layouts.end(), holds_trigger);
    if (at != plan.layouts.end()) ++at;
    for (const auto& [type, members] : delayed) {
      at = plan.layouts.insert(at, buckets::lay_out(parameters_, members)) + 1;
    }
  }
  for (const buckets::BucketLayout& layout : plan.layouts) plan.kinds.push_back(kind_of(layout));
  return plan;
}

GradientBuckets::Plan ReductionPlanner::from_names(const BucketNames& names) const {
  GradientBuckets::Plan plan;
  std::vector<bool> seen(names_.size(), false);
  for (std::size_t bucket = 0; bucket < names.size(); ++bucket) {
    std::vector<std::size_t> members;
    for (const std::string& name : names[bucket]) {
      const std::size_t index = index_of(name, "bucket_layout");
      const auto refuse = [&](const char* problem) {
        throw std::invalid_argument(
            fmt::format("bucket_layout: parameter {} in bucket {} {}", name, bucket, problem));
      };
      if (seen[index]) refuse("is in a bucket already");
      seen[index] = true;
      if (!members.empty()) {
        const std::size_t first = members.front();
        if (parameters_[first].alone || parameters_[index].alone) {
          refuse("shares it, but one of the gradients is sparse");
        }
        if (parameters_[first].type != parameters_[index].type)
          refuse("is of another type or on another device");
        if (is_delayed_[first] != is_delayed_[index])
          refuse("differs from the first one in being delayed");
      }
      members.push_back(index);
    }
    if (members.empty()) {
      throw std::invalid_argument(fmt::format("bucket_layout: bucket {} is empty", bucket));
    }
    plan.layouts.push_back(buckets::lay_out(parameters_, members));
    plan.kinds.push_back(kind_of(plan.layouts.back()));
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing != seen.end()) {
    throw std::invalid_argument(
        fmt::format("bucket_layout: parameter {} is in no bucket",
                    names_[static_cast<std::size_t>(missing - seen.begin())]));
  }
  return plan;
}

}  // namespace ddp
