#pragma once

#include <string>

#include "launcher/ddp_run/hosts_plan.h"
#include "launcher/ddp_run/job_plan.h"

namespace ddp::run {

// The job, a line for each thing.
std::string describe_job(const JobPlan& plan);

// The job and this node's part in it, a line for each thing, for people.
std::string describe_plan(const JobPlan& plan);

// --dry-run with --hosts: the job, and each host with its place, how it is started, what is passed
// on to it, and its workers as far as they are known. `options` are those of this ddp-run. Gives
// the exit status.
int dry_run_hosts(const HostsPlan& plan, const Options& options);

// --dry-run: prints that, then what each worker of this node would get (the agent says it, since it
// would make it). Starts nothing of the job. Gives the exit status.
int dry_run(JobPlan plan);

}  // namespace ddp::run
