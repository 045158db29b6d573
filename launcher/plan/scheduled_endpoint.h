#pragma once

#include "common/base/result.h"
#include "launcher/flags/flags.h"
#include "launcher/machine/machine.h"

namespace ddp::plan {

// The options with the endpoint that follows from the scheduler and this machine's name, where
// nothing names one. Errors are exit_error with kExitInvalidValue.
Result<flags::Options> with_scheduled_endpoint(flags::Options options,
                                               const machine::Machine& machine);

}  // namespace ddp::plan
