#pragma once

#include <optional>
#include <string>

#include "worker/runtime/worker_environment.h"

namespace ddp::runtime {

// Programs that mpirun starts without ddp-run have no RANK and WORLD_SIZE, but the variables of
// common/config/mpi_ranks.h, which say the same. This gives RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as they follow from those; nothing for other names,
// with any of WORLD_SIZE or ddp-run's own variables, and for a world of one. All ranks on one
// machine meet on loopback, at a port that follows from the job's name (29500 if it has none).
// On several machines, MASTER_ADDR must be set. Pure. Throws std::invalid_argument, which names the
// variable that is wrong.
std::optional<std::string> mpi_variable(const Lookup& lookup, const std::string& name);

}  // namespace ddp::runtime
