#include "launcher/schedulers/placement.h"

#include "launcher/schedulers/flux.h"
#include "launcher/schedulers/kubernetes.h"
#include "launcher/schedulers/lsf.h"
#include "launcher/schedulers/mpi.h"
#include "launcher/schedulers/pbs.h"

namespace ddp::schedulers {

Result<std::optional<Placement>> read_placement(const GetEnvironment& environment) {
  // A worker inherits the environment of its ddp-run, but the scheduler has not started it.
  if (environment("DDP_NODE_ID") != nullptr) return std::optional<Placement>();
  // mpirun starts its helpers on other machines by srun, so its variables are nearer.
  if (auto mpi = read_mpi(environment); !mpi || *mpi) return mpi;
  // Brokers of Flux may be started by srun.
  if (auto flux = read_flux(environment); !flux || *flux) return flux;
  // Nodes of SLURM may themselves be pods, and srun is nearer to this process than they are.
  if (environment("SLURM_STEP_ID") != nullptr) return std::optional<Placement>();
  if (auto lsf = read_lsf_task(environment); !lsf || *lsf) return lsf;
  if (auto pbs = read_pbs_task(environment); !pbs || *pbs) return pbs;
  return read_kubernetes(environment);
}

}  // namespace ddp::schedulers
