#pragma once

#include "worker/trainer_launch/launch_plan.h"

namespace ddp::trainer {

// Carries out the plan: does nothing, or replaces this process by ddp-run, with this program and
// its arguments as the workers' command. Takes ddp-run from $DDP_RUN, else from beside libddp or
// this program's file, else from PATH. Throws std::runtime_error if it cannot be started.
void launch(const LaunchPlan& plan);

}  // namespace ddp::trainer
