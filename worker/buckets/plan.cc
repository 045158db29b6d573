#include "worker/buckets/plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace ddp {

std::vector<BucketLayout> plan_buckets(const std::vector<BucketParameter>& parameters,
                                       const BucketLimits& limits) {
  struct OfType {
    BucketLayout open;
    std::size_t limit = 0;
  };
  std::map<int, OfType> types;
  std::vector<BucketLayout> closed;
  for (std::size_t left = parameters.size(); left > 0; --left) {
    const std::size_t index = left - 1;
    const BucketParameter& parameter = parameters[index];
    auto [entry, is_first] = types.try_emplace(parameter.type);
    OfType& of_type = entry->second;
    if (is_first) of_type.limit = limits.first_bytes;
    BucketLayout& open = of_type.open;
    open.type = parameter.type;
    open.slots.push_back({index, open.bytes});
    open.bytes += parameter.bytes;
    if (open.bytes >= of_type.limit) {
      closed.push_back(std::exchange(open, {}));
      of_type.limit = limits.other_bytes;
    }
  }
  for (auto& [type, of_type] : types) {
    if (!of_type.open.slots.empty()) closed.push_back(std::move(of_type.open));
  }
  // A bucket is full when the last of its parameters arrives, which is the one defined first.
  std::sort(closed.begin(), closed.end(), [](const BucketLayout& a, const BucketLayout& b) {
    return a.slots.back().parameter > b.slots.back().parameter;
  });
  return closed;
}

}  // namespace ddp
