#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ScalarType.h>

#include "worker/buckets/plan.h"
#include "worker/ddp/averaging/bucket_names.h"
#include "worker/ddp/averaging/gradient_buckets.h"
#include "worker/ddp/tensors/module_state.h"

namespace ddp {

// Decides which gradients travel together. Depends on the arguments alone, so ranks with equal ones
// agree.
class ReductionPlanner {
 public:
  struct Options {
    buckets::BucketLimits limits = {};
    std::vector<std::string> sparse = {};   // Their gradients are sparse: a bucket each.
    std::vector<std::string> delayed = {};  // In buckets of their own, one for each type...
    std::string delay_until = {};           // ...reduced next after this parameter's.
    std::optional<at::ScalarType> element_type = {};  // Of the buckets, if not the parameters'.
  };
  // Parameters in the order of definition, dense in themselves, of a floating-point type. Those on
  // different devices are in different buckets. Throws std::invalid_argument naming a parameter
  // that does not fit, or an unknown name.
  ReductionPlanner(const std::vector<NamedTensor>& parameters, Options options);

  // Before the order is known: the reverse of the order of definition.
  GradientBuckets::Plan first() const;
  // For gradients that arrive in this order, which has every parameter once.
  GradientBuckets::Plan in_order(const std::vector<std::size_t>& order) const;
  // As bucket_names() of an earlier plan. Throws std::invalid_argument naming what does not fit.
  GradientBuckets::Plan from_names(const BucketNames& names) const;

 private:
  std::size_t index_of(const std::string& name, const char* option) const;
  GradientBuckets::Kind kind_of(const buckets::BucketLayout& layout) const;

  Options options_;
  std::vector<std::string> names_;
  std::vector<buckets::BucketParameter> parameters_;
  std::vector<bool> is_delayed_;
  std::optional<std::size_t> delay_until_;
};

}  // namespace ddp
