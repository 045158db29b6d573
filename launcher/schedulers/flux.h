#pragma once

#include <optional>

#include "common/base/environment.h"
#include "common/base/result.h"
#include "launcher/schedulers/placement.h"

// A ddp-run that `flux run` or `flux submit` has started: one on each node. flux-environment(7)
// names FLUX_TASK_RANK, FLUX_JOB_SIZE (tasks), FLUX_JOB_NNODES and FLUX_JOB_ID. Where the first
// task is, they do not say; `flux hostlist -ln0` does (flux-hostlist(1)). Pure.
namespace ddp::schedulers {

// Nothing outside of a task of Flux. A batch script (flux batch) is none.
Result<std::optional<Placement>> read_flux(const GetEnvironment& environment);

}  // namespace ddp::schedulers
