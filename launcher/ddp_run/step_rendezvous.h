#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "launcher/ddp_run/job_plan.h"

namespace ddp::run {

// For the other nodes of a SLURM step: finds the rendezvous that the first node's ddp-run hosts, on
// whichever of plan.step_ports it has got, and fills in spec's coordinator. A daemon of another job
// that has one of the ports is told apart by GET /job. The node's name is looked up; where no name
// service knows it, scontrol is asked for its address.
//
// Blocks until it answers, or the join timeout passes (kExitJoinTimeout); every few seconds a line
// on standard error says what is waited for.
Result<void> find_step_rendezvous(JobPlan& plan);

// Waits until the rendezvous's process has ended, `limit` at most: the node that reports and asks
// SLURM for another run ends first, so `srun --kill-on-bad-exit` takes nothing from it.
void wait_for_end_of_rendezvous(const JobPlan& plan, Duration limit);

}  // namespace ddp::run
