#include "worker/buckets/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"

namespace ddp::buckets {
namespace {

// The limit of the bucket that a type closes after `closed` others.
std::size_t limit_of(const BucketLimits& limits, std::size_t closed) {
  if (limits.list.empty()) return closed == 0 ? limits.first_bytes : limits.other_bytes;
  return limits.list[std::min(closed, limits.list.size() - 1)];
}

struct Open {
  std::vector<std::size_t> members;
  std::size_t bytes = 0;
  std::size_t closed = 0;  // Buckets of this type before it.
};

}  // namespace

BucketLayout lay_out(const std::vector<BucketParameter>& parameters,
                     const std::vector<std::size_t>& members) {
  BucketLayout layout;
  for (const std::size_t index : members) {
    const BucketParameter& parameter = parameters[index];
    DDP_CHECK(layout.slots.empty() || layout.type == parameter.type,
              "parameter {} has type {}, but its bucket type {}", index, parameter.type,
              layout.type);
    layout.type = parameter.type;
    layout.slots.push_back({index, layout.bytes});
    layout.bytes += parameter.bytes;
  }
  return layout;
}

std::vector<BucketLayout> plan_buckets(const std::vector<BucketParameter>& parameters,
                                       const std::vector<std::size_t>& order,
                                       const BucketLimits& limits) {
  std::map<int, Open> types;
  // A bucket is full when the last of its parameters arrives. Holds that parameter's position, too.
  std::vector<std::pair<std::size_t, BucketLayout>> closed;
  std::vector<std::size_t> position(parameters.size(), order.size());
  const auto close = [&](const std::vector<std::size_t>& members) {
    closed.emplace_back(position[members.back()], lay_out(parameters, members));
  };
  for (std::size_t at = 0; at < order.size(); ++at) {
    const std::size_t index = order[at];
    DDP_CHECK(index < parameters.size() && position[index] == order.size(),
              "parameter {} of {} is in the order twice or out of range", index, parameters.size());
    position[index] = at;
    const BucketParameter& parameter = parameters[index];
    if (parameter.alone) {
      close({index});
      continue;
    }
    Open& open = types[parameter.type];
    open.members.push_back(index);
    open.bytes += parameter.bytes;
    if (open.bytes >= limit_of(limits, open.closed)) {
      close(std::exchange(open.members, {}));
      open.bytes = 0;
      ++open.closed;
    }
  }
  for (const auto& [type, open] : types) {
    if (!open.members.empty()) close(open.members);
  }
  std::sort(closed.begin(), closed.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<BucketLayout> layouts;
  for (auto& [filled_at, layout] : closed) layouts.push_back(std::move(layout));
  return layouts;
}

std::vector<BucketLayout> plan_buckets(const std::vector<BucketParameter>& parameters,
                                       const BucketLimits& limits) {
  std::vector<std::size_t> order;
  for (std::size_t left = parameters.size(); left > 0; --left) order.push_back(left - 1);
  return plan_buckets(parameters, order, limits);
}

}  // namespace ddp::buckets
