#pragma once

#include <string>

#include "launcher/ddp_run/job_plan.h"

namespace ddp::run {

// The job and this node's part in it, a line for each thing, for people.
std::string describe_plan(const JobPlan& plan);

// --dry-run: prints that, then what each worker of this node would get (the agent says it, since it
// would make it). Starts nothing of the job. Gives the exit status.
int dry_run(JobPlan plan);

}  // namespace ddp::run
