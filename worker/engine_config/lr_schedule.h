#pragma once

#include <cstdint>

#include "worker/engine_config/config.h"

namespace ddp::engine {

// The learning rate of the update after `step` updates (0: of the first one), where the optimizer's
// own is `base`: DeepSpeed's WarmupLR (rises from warmup_min_lr to warmup_max_lr, by log(step + 1)
// or linearly, and stays), WarmupDecayLR (and falls linearly to 0 at total_num_steps) and
// WarmupCosineLR (shares of `base`: rises from warmup_min_ratio to 1, falls as a cosine to
// cos_min_ratio). A pure function, so resuming needs the number of updates alone.
double learning_rate(const SchedulerConfig& schedule, double base, std::int64_t step);

}  // namespace ddp::engine
