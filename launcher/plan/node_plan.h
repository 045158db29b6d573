#pragma once

#include "common/base/result.h"
#include "common/config/job_spec.h"
#include "launcher/flags/flags.h"
#include "launcher/machine/machine.h"

namespace ddp::plan {

// Plans this node's part: the number of workers, their devices and CPUs. Fills these fields of
// `spec`. Errors are exit_error with kExitInvalidValue.
Result<void> plan_node(const flags::Options& options, const machine::Machine& machine,
                       config::JobSpec& spec);

}  // namespace ddp::plan
