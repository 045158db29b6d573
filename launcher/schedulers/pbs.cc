#include "launcher/schedulers/pbs.h"

#include <utility>

#include <fmt/format.h>

#include "launcher/schedulers/variables.h"

namespace ddp::schedulers {

Result<std::optional<Placement>> read_pbs_task(const GetEnvironment& environment) {
  const auto node = number_of(environment, "PBS_NODENUM");
  const auto task = number_of(environment, "PBS_TASKNUM");
  for (const auto* number : {&node, &task})
    if (!*number) return number->error();
  const bool in_job = !text_of(environment, "PBS_JOBID").empty();
  const bool is_script = node->value_or(0) == 0 && task->value_or(1) <= 1;
  if (!in_job || !*node || is_script) return std::optional<Placement>();
  Placement placement;
  placement.scheduler = "PBS";
  placement.source = fmt::format("PBS_NODENUM={}", **node);
  placement.node_rank = **node;
  placement.job_id = text_of(environment, "PBS_JOBID");
  placement.size_remedy =
      "start it once on each host (select=N:mpiprocs=1; Torque's pbsdsh -u) and set PET_NNODES to "
      "the number of different hosts in PBS_NODEFILE";
  placement.meeting_remedy =
      "set MASTER_ADDR to the first host: pbsdsh -- sh -c 'MASTER_ADDR=HOST exec ddp-run ...'; or "
      "leave pbsdsh out, and ddp-run starts itself on the job's hosts";
  return std::optional<Placement>(std::move(placement));
}

std::optional<BatchHosts> pbs_batch_hosts(const GetEnvironment& environment) {
  const std::string file = text_of(environment, "PBS_NODEFILE");
  const std::string job = text_of(environment, "PBS_JOBID");
  const auto task = read_pbs_task(environment);
  if (file.empty() || job.empty() || !task || *task) return {};
  return BatchHosts{"PBS", "PBS_NODEFILE", file, job};
}

}  // namespace ddp::schedulers
