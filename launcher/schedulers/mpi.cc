#include "launcher/schedulers/mpi.h"

#include <utility>

#include "common/config/derived_port.h"
#include "common/config/mpi_ranks.h"

namespace ddp::schedulers {

Result<std::optional<Placement>> read_mpi(const GetEnvironment& environment) {
  auto ranks = config::read_mpi_ranks(environment);
  if (!ranks) return ranks.error();
  if (!*ranks) return std::optional<Placement>();
  config::MpiRanks& own = **ranks;
  Placement placement;
  placement.scheduler = std::move(own.launcher);
  placement.source = std::move(own.source);
  placement.node_rank = own.rank;
  placement.num_nodes = own.size;
  placement.nodes_here = own.local_size.value_or(1);
  if (own.on_one_machine()) placement.meeting = Placement::Meeting::kThisMachine;
  if (own.on_one_machine() && !own.job.empty())
    placement.port = config::derived_ports(own.job, 1).front();
  placement.job_id = std::move(own.job);
  placement.size_remedy = "set PET_NNODES to the number of processes that it starts";
  placement.meeting_remedy =
      "set MASTER_ADDR to the machine of rank 0 for all of them (mpirun -x MASTER_ADDR=node1, or "
      "-genv MASTER_ADDR node1), or name it with --rdzv-endpoint";
  placement.one_a_machine = "mpirun --map-by ppr:1:node, or -ppn 1";
  return std::optional<Placement>(std::move(placement));
}

}  // namespace ddp::schedulers
