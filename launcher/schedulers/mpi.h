#pragma once

#include <optional>

#include "common/base/environment.h"
#include "common/base/result.h"
#include "launcher/schedulers/placement.h"

// A ddp-run that mpirun has started: one on each machine, which starts the workers there. The
// variables are those of common/config/mpi_ranks.h. Pure.
namespace ddp::schedulers {

// Nothing if no launcher of MPI has started this process.
Result<std::optional<Placement>> read_mpi(const GetEnvironment& environment);

}  // namespace ddp::schedulers
