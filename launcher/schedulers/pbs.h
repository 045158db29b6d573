#pragma once

#include <optional>

#include "common/base/environment.h"
#include "common/base/result.h"
#include "launcher/schedulers/batch_hosts.h"
#include "launcher/schedulers/placement.h"

// PBS: OpenPBS, PBS Professional, Torque. A batch script runs on the first host; PBS_NODEFILE is a
// file with a line for each process of MPI (qsub(1B), pbsdsh(1B)), and PBS_JOBID the job. pbsdsh
// starts a task for each line; PBS_NODENUM is the number of its node, from 0, and PBS_TASKNUM its
// number, where the script is task 1 on node 0 (PBS Professional User's Guide, "PBS Environment
// Variables"). Pure.
namespace ddp::schedulers {

// A task of pbsdsh.
Result<std::optional<Placement>> read_pbs_task(const GetEnvironment& environment);

// The hosts of a batch script, or of the shell of `qsub -I`.
std::optional<BatchHosts> pbs_batch_hosts(const GetEnvironment& environment);

}  // namespace ddp::schedulers
