#include "worker/runtime/calibration.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "worker/runtime/group.h"
#include "worker/runtime/worker_environment.h"

namespace ddp::runtime {
namespace {

constexpr std::size_t kFew = 256;
constexpr std::size_t kMany = transport::kSmallBytes;
constexpr int kRuns = 12;

OpOptions at_once() {
  OpOptions options;
  options.tag = "calibration";
  options.synchronous = true;
  return options;
}

// The shortest of some runs, in nanoseconds: disturbances only make a run longer.
double shortest_ns(Group& group, void* data, std::size_t bytes) {
  const Buffer buffer{data, bytes / sizeof(float), DType::kF32};
  double shortest = std::numeric_limits<double>::max();
  for (int run = 0; run < kRuns; ++run) {
    const TimePoint begin = Clock::now();
    group.all_reduce(buffer, ReduceOp::kMax, at_once());
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    shortest = std::min(shortest, took.count());
  }
  return shortest;
}

struct Line {
  double ns = 0;
  double ns_per_byte = 0;
};

Line line_through(double few_ns, double many_ns) {
  const double slope = std::max(0.0, many_ns - few_ns) / static_cast<double>(kMany - kFew);
  return {few_ns - slope * static_cast<double>(kFew), slope};
}

}  // namespace

collectives::CostTable measure_costs(Group& group) {
  collectives::CostTable costs;
  if (group.size() == 1 || group.nodes() > 1) return costs;
  const auto registered = group.allocate(kMany);
  const auto memory = std::make_unique<std::byte[]>(kMany);
  if (!registered) return costs;
  std::memset(registered.get(), 0, kMany);
  std::memset(memory.get(), 0, kMany);
  const Line one_shot =
      line_through(shortest_ns(group, memory.get(), kFew), shortest_ns(group, memory.get(), kMany));
  // Force `direct` for registered memory, so that it is measured at both sizes.
  collectives::CostTable in_place = costs;
  in_place.forced_in_node = collectives::Algorithm::kDirect;
  group.choose(collectives::Choice(in_place));
  const Line direct = line_through(shortest_ns(group, registered.get(), kFew),
                                   shortest_ns(group, registered.get(), kMany));
  group.choose(collectives::Choice(costs));
  costs.one_shot_ns = one_shot.ns;
  costs.one_shot_ns_per_byte = one_shot.ns_per_byte;
  costs.direct_ns = direct.ns;
  costs.direct_ns_per_byte = direct.ns_per_byte;
  return costs;
}

void calibrate(Group& group) {
  if (group.size() == 1) return;
  collectives::CostTable costs;
  group.aside([&] { costs = measure_costs(group); });
  if (group.rank() == 0) {
    const auto forced = collectives::force(process_variable("DDP_ALGO").value_or(""), costs);
    if (!forced) {
      group.abort(forced.error().message);
      throw std::invalid_argument(forced.error().message);
    }
  }
  static_assert(std::is_trivially_copyable_v<collectives::CostTable>);
  group.aside([&] { group.broadcast({&costs, sizeof(costs), DType::kU8}, 0, at_once()); });
  const collectives::Choice choice(costs);
  group.choose(choice);
  if (group.rank() == 0 && process_variable("DDP_PRINT_ALGO").value_or("") == "1")
    std::fprintf(stderr, "ddp: %s\n", choice.describe().c_str());
}

}  // namespace ddp::runtime
