#pragma once

#include "worker/trainer_launch/launch_plan.h"

namespace ddp::trainer {

// Carries out the plan: nothing, or ddp-run takes the place of this process, with this program and
// its arguments as the workers' command. ddp-run is $DDP_RUN, else the one beside libddp or this
// program's file, else the one in PATH. Throws std::runtime_error if it cannot be started.
void launch(const LaunchPlan& plan);

}  // namespace ddp::trainer
