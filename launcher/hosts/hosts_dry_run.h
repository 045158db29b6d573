#pragma once

#include "launcher/flags/flags.h"
#include "launcher/hosts/hosts_plan.h"

namespace ddp::hosts {

// --dry-run with --hosts: prints the job, and for each host its place, the command that starts it,
// the environment that it gets, and its workers as far as they are known. `options` are those of
// this ddp-run. Gives the exit status.
int dry_run_hosts(const HostsPlan& plan, const flags::Options& options);

}  // namespace ddp::hosts
