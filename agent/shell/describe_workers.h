#pragma once

#include <string>

#include "common/config/job_spec.h"

namespace ddp::agent {

// A text for people: each worker of this node with its command, its CPUs and the new variables of
// its environment. Values that are decided only when the nodes have met are shown as if this were
// the first of min_nodes equal nodes, or the first node of dry_run_workers. The text says so.
std::string describe_workers(const config::JobSpec& spec,
                             const std::vector<std::string>& inherited);

// Prints that text for this process's environment. Returns the exit status: kExitInvalidValue, with
// a line on standard error, if workers cannot be bound to CPUs as requested.
int print_dry_run(const config::JobSpec& spec);

}  // namespace ddp::agent
