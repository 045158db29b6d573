#pragma once

#include <string>

#include "common/base/result.h"
#include "worker/runtime/process_group.h"
#include "worker/train/options.h"

// What all workers must find before they train, so that they end together and with one message if
// one of them does not. Collective.
namespace ddp::train {

// Returns if this succeeded on all ranks, else throws the same Failure on all: "prefix: rank 1:
// message".
void agree_or_fail(ProcessGroup& group, const Result<void>& mine, int exit_status,
                   const std::string& prefix);

// Checks that all workers were started with the same flags, where a difference would make them
// compute different things or wait for each other in vain. Throws a Failure with kExitInvalidValue
// that names the first flag that differs.
void check_same_flags(const Options& options, ProcessGroup& group);

}  // namespace ddp::train
