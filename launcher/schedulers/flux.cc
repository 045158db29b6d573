#include "launcher/schedulers/flux.h"

#include <utility>

#include <fmt/format.h>

#include "common/config/derived_port.h"
#include "launcher/schedulers/variables.h"

namespace ddp::schedulers {

Result<std::optional<Placement>> read_flux(const GetEnvironment& environment) {
  const auto rank = number_of(environment, "FLUX_TASK_RANK");
  const auto tasks = number_of(environment, "FLUX_JOB_SIZE", 1);
  const auto nodes = number_of(environment, "FLUX_JOB_NNODES", 1);
  for (const auto* number : {&rank, &tasks, &nodes})
    if (!*number) return number->error();
  if (!*rank) return std::optional<Placement>();
  Placement placement;
  placement.scheduler = "Flux";
  placement.source = fmt::format("FLUX_TASK_RANK={}", **rank);
  placement.node_rank = **rank;
  placement.num_nodes = *tasks;
  placement.job_id = text_of(environment, "FLUX_JOB_ID");
  if (*tasks && *nodes) placement.nodes_here = (**tasks + **nodes - 1) / **nodes;
  if (*nodes == 1 && !placement.job_id.empty()) {
    placement.meeting = Placement::Meeting::kThisMachine;
    placement.port = config::derived_ports(placement.job_id, 1).front();
  }
  placement.size_remedy = "set PET_NNODES to the number of tasks";
  placement.meeting_remedy =
      "name the first task's node: flux run ... sh -c 'MASTER_ADDR=$(flux hostlist -ln0) exec "
      "ddp-run ...'";
  placement.one_a_machine = "flux run -N NODES -n NODES";
  return std::optional<Placement>(std::move(placement));
}

}  // namespace ddp::schedulers
