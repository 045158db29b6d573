#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "launcher/plan/job_plan.h"

namespace ddp::slurm {

// For the other nodes of a SLURM step: finds the rendezvous that the first node's ddp-run hosts on
// one of plan.step_ports, and fills in spec's coordinator. GET /job tells it from the daemons of
// other jobs. If no name service knows the first node's name, scontrol gives its address.
//
// Blocks until the rendezvous answers, or until the join timeout has passed (kExitJoinTimeout).
// Every few seconds a line on standard error says what it waits for.
Result<void> find_step_rendezvous(plan::JobPlan& plan);

// Waits until the process that hosts the rendezvous has ended, at most `limit`. That process prints
// the report and asks SLURM for another run, so it must end first: `srun --kill-on-bad-exit` would
// kill it when another task ends.
void wait_for_end_of_rendezvous(const plan::JobPlan& plan, Duration limit);

}  // namespace ddp::slurm
