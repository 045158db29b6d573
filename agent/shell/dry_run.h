#pragma once

#include <string>

#include "common/config/job_spec.h"

namespace ddp::agent {

// Each worker of this node with its command, its CPUs and what is new in its environment, for
// people. What is decided only when the nodes have met is shown as for the first of min_nodes nodes
// like this one, or of dry_run_workers, and says so.
std::string describe_workers(const config::JobSpec& spec,
                             const std::vector<std::string>& inherited);

// Prints that for this process's environment. Gives the exit status: kExitInvalidValue, with a line
// on standard error, where workers could not be bound to CPUs as asked.
int print_dry_run(const config::JobSpec& spec);

}  // namespace ddp::agent
