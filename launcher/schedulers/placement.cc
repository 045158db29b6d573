#include "launcher/schedulers/placement.h"

#include <algorithm>
#include <array>

#include "launcher/schedulers/kubernetes.h"
#include "launcher/schedulers/mpi.h"

namespace ddp::schedulers {

Result<std::optional<Placement>> read_placement(const GetEnvironment& environment) {
  // A worker inherits the environment of its ddp-run, but the scheduler has not started it.
  if (environment("DDP_NODE_ID") != nullptr) return std::optional<Placement>();
  // mpirun starts its helpers on other machines by srun, so its variables are nearer.
  if (auto mpi = read_mpi(environment); !mpi || *mpi) return mpi;
  // Nodes of SLURM may themselves be pods, and srun is nearer to this process than they are.
  if (environment("SLURM_STEP_ID") != nullptr) return std::optional<Placement>();
  return read_kubernetes(environment);
}

bool is_schedulers_variable(std::string_view name) {
  constexpr auto kBeginnings = std::to_array<std::string_view>(
      {"JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL"});
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [name](std::string_view beginning) { return name.starts_with(beginning); });
}

}  // namespace ddp::schedulers
