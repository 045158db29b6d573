#pragma once

#include "common/base/result.h"
#include "common/config/job_spec.h"
#include "launcher/ddp_run/flags.h"
#include "launcher/ddp_run/machine.h"

namespace ddp::run {

// What this node brings into the job: how many workers, on which devices and CPUs, under which
// address. Fills these fields of `spec`. Errors are exit_error with kExitInvalidValue.
Result<void> plan_node(const Options& options, const Machine& machine, config::JobSpec& spec);

}  // namespace ddp::run
