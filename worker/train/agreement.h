#pragma once

#include <string>

#include "common/base/result.h"
#include "worker/runtime/process_group.h"
#include "worker/train/options.h"

// Checks that must succeed on all workers before they train. If one fails, all workers end together
// and with one message. Collective.
namespace ddp::train {

// Returns if `mine` is a success on all ranks, else throws the same TrainingFailure on all of them:
// "prefix: rank 1: message".
void agree_or_fail(ProcessGroup& group, const Result<void>& mine, int exit_status,
                   const std::string& prefix);

// Checks that all workers have the same values of those flags whose difference would make them
// compute different things or wait for each other in vain. Throws a TrainingFailure with
// kExitInvalidValue that names the first flag that differs.
void check_same_flags(const Options& options, ProcessGroup& group);

}  // namespace ddp::train
