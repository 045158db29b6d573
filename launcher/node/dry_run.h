#pragma once

#include <string>
#include <string_view>

#include "launcher/plan/job_plan.h"

// What --dry-run prints.
namespace ddp::node {

// One line: a name in a column of its own, and a value.
std::string fact(std::string_view name, std::string_view value);

// Describes the job, one fact per line.
std::string describe_job(const plan::JobPlan& plan);

// Says where log files will be.
std::string describe_log_dir(const config::JobSpec& spec);

// Prints each worker's command and environment. The agent does that, because it would make them.
// Gives the exit status.
int describe_workers(config::JobSpec spec);

// Prints the job, this node's part in it, and its workers. Starts no part of the job. Gives the
// exit status.
int dry_run(plan::JobPlan plan);

}  // namespace ddp::node
