#include "launcher/schedulers/placement.h"

#include "launcher/schedulers/kubernetes.h"

namespace ddp::schedulers {

Result<std::optional<Placement>> read_placement(const GetEnvironment& environment) {
  // A worker inherits the environment of its ddp-run, but the scheduler has not started it.
  if (environment("DDP_NODE_ID") != nullptr) return std::optional<Placement>();
  // Nodes of SLURM may themselves be pods, and srun is nearer to this process than they are.
  if (environment("SLURM_STEP_ID") != nullptr) return std::optional<Placement>();
  return read_kubernetes(environment);
}

bool is_schedulers_variable(std::string_view name) { return name == "JOB_COMPLETION_INDEX"; }

}  // namespace ddp::schedulers
