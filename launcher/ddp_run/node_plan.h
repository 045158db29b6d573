#pragma once

#include "common/base/result.h"
#include "common/config/job_spec.h"
#include "launcher/ddp_run/flags.h"
#include "launcher/ddp_run/machine.h"

namespace ddp::run {

// Plans this node's part: the number of workers, their devices and CPUs, and the node's address.
// Fills these fields of `spec`. Errors are exit_error with kExitInvalidValue.
Result<void> plan_node(const Options& options, const Machine& machine, config::JobSpec& spec);

}  // namespace ddp::run
