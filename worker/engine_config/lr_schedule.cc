#include "worker/engine_config/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ddp::engine {
namespace {

// How much of the rise is done, 0 to 1.
double risen(const SchedulerConfig& schedule, std::int64_t step) {
  // DeepSpeed's, whose logarithm would have no value with fewer.
  const auto steps = static_cast<double>(std::max<std::int64_t>(schedule.warmup_num_steps, 2));
  const auto at = static_cast<double>(step);
  if (at >= steps) return 1;
  return schedule.warmup_type == SchedulerConfig::Rise::kLog ? std::log(at + 1) / std::log(steps)
                                                             : at / steps;
}

// How much is left of what follows the rise, 1 to 0.
double left(const SchedulerConfig& schedule, std::int64_t step) {
  const std::int64_t rise = std::max<std::int64_t>(schedule.warmup_num_steps, 2);
  const std::int64_t all = std::max<std::int64_t>(schedule.total_num_steps - rise, 1);
  return std::clamp(static_cast<double>(schedule.total_num_steps - step) / static_cast<double>(all),
                    0.0, 1.0);
}

}  // namespace

double learning_rate(const SchedulerConfig& schedule, double base, std::int64_t step) {
  using Type = SchedulerConfig::Type;
  const double up = risen(schedule, step);
  const bool rises = step < std::max<std::int64_t>(schedule.warmup_num_steps, 2);
  if (schedule.type == Type::kWarmupCosine) {
    if (rises) return base * (schedule.warmup_min_ratio + (1 - schedule.warmup_min_ratio) * up);
    const double wave = (1 + std::cos(std::numbers::pi * (1 - left(schedule, step)))) / 2;
    return base * (schedule.cos_min_ratio + (1 - schedule.cos_min_ratio) * wave);
  }
  const double span = schedule.warmup_max_lr - schedule.warmup_min_lr;
  if (rises || schedule.type == Type::kWarmup) return schedule.warmup_min_lr + span * up;
  return schedule.warmup_min_lr + span * left(schedule, step);
}

}  // namespace ddp::engine
