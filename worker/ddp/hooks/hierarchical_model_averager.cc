#include "worker/ddp/hooks/hierarchical_model_averager.h"

#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "worker/ddp/hooks/subgroups.h"

namespace ddp {
namespace {

using Pairs = std::vector<std::pair<std::int64_t, int>>;

void check(const Pairs& pairs, std::int64_t warmup_steps, int ranks) {
  const auto refuse = [](const std::string& text) {
    throw std::invalid_argument("HierarchicalModelAverager: " + text);
  };
  if (warmup_steps < 0) {
    refuse(fmt::format("warmup_steps must not be negative, it is {}", warmup_steps));
  }
  if (pairs.empty()) refuse("period_group_size must not be empty");
  std::int64_t former = 0;
  for (const auto& [period, size] : pairs) {
    if (period <= former) {
      refuse(fmt::format("periods must be at least 1 and ascend; {} follows {}", period, former));
    }
    former = period;
    if (size < 1 || ranks % size != 0) {
      refuse(fmt::format("{} ranks cannot be divided into groups of {}", ranks, size));
    }
  }
  if (pairs.back().second != ranks) {
    refuse(fmt::format("the last group size must be that of the group, {}, not {}", ranks,
                       pairs.back().second));
  }
}

}  // namespace

HierarchicalModelAverager::HierarchicalModelAverager(Pairs period_group_size,
                                                     std::int64_t warmup_steps,
                                                     std::shared_ptr<ProcessGroup> process_group)
    : ModelAverager(process_group), warmup_steps_(warmup_steps) {
  const int ranks = process_group->size();
  check(period_group_size, warmup_steps, ranks);
  if (period_group_size.back().first == 1) {
    TORCH_WARN_ONCE(
        "HierarchicalModelAverager with a largest period of 1 averages the model at every step, "
        "which costs no less than to average the gradients: use DistributedDataParallel alone");
  }
  for (const auto& [period, size] : period_group_size) {
    auto group = size == ranks ? process_group : new_subgroups(*process_group, size);
    levels_.insert(levels_.begin(), {period, std::move(group)});
  }
}

ProcessGroup* HierarchicalModelAverager::group_of(std::int64_t step) const {
  for (const Level& level : levels_) {
    if (step % level.period == 0) return level.group.get();
  }
  return nullptr;
}

}  // namespace ddp
