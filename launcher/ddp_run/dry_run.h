#pragma once

#include <string>

#include "launcher/ddp_run/hosts_plan.h"
#include "launcher/ddp_run/job_plan.h"

namespace ddp::run {

// Describes the job, one fact per line.
std::string describe_job(const JobPlan& plan);

// Describes the job and this node's part in it, one fact per line.
std::string describe_plan(const JobPlan& plan);

// --dry-run with --hosts: prints the job, and for each host its place, the command that starts it,
// the environment that it gets, and its workers as far as they are known. `options` are those of
// this ddp-run. Gives the exit status.
int dry_run_hosts(const HostsPlan& plan, const Options& options);

// --dry-run: prints describe_plan(), then each worker's command and environment. The agent prints
// the latter, because it would make them. Starts no part of the job. Gives the exit status.
int dry_run(JobPlan plan);

}  // namespace ddp::run
