#pragma once

#include <optional>

#include "common/base/environment.h"
#include "common/base/result.h"
#include "launcher/schedulers/batch_hosts.h"
#include "launcher/schedulers/placement.h"

// LSF. A batch script runs on the first host; LSB_DJOB_HOSTFILE is a file with a line for each slot
// ("Environment variables set for job execution", with LSB_JOBID and LSB_MCPU_HOSTS: "HOST SLOTS
// HOST SLOTS ..."). blaunch starts a task for each slot or, with -z, for each host that it names
// ("blaunch"), and gives it LSF_PM_TASKID, from 1, by which Open MPI and PRRTE know their daemons,
// too. Pure.
namespace ddp::schedulers {

// A task of blaunch.
Result<std::optional<Placement>> read_lsf_task(const GetEnvironment& environment);

// The hosts of a batch script.
std::optional<BatchHosts> lsf_batch_hosts(const GetEnvironment& environment);

}  // namespace ddp::schedulers
