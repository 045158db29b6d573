#include "launcher/schedulers/lsf.h"

#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "launcher/schedulers/variables.h"

namespace ddp::schedulers {
namespace {

// What LSB_MCPU_HOSTS says.
struct Slots {
  std::string first_host;
  int hosts = 0;
  bool one_each = true;
};

Slots slots_of(const std::string& text) {
  std::istringstream words(text);
  Slots slots;
  std::string host;
  for (int count = 0; words >> host >> count; ++slots.hosts) {
    if (slots.hosts == 0) slots.first_host = host;
    slots.one_each &= count == 1;
  }
  return slots;
}

}  // namespace

Result<std::optional<Placement>> read_lsf_task(const GetEnvironment& environment) {
  const auto task = number_of(environment, "LSF_PM_TASKID", 1);
  if (!task) return task.error();
  if (!*task || text_of(environment, "LSB_JOBID").empty()) return std::optional<Placement>();
  Placement placement;
  placement.scheduler = "LSF";
  placement.source = fmt::format("LSF_PM_TASKID={}", **task);
  placement.node_rank = **task - 1;
  placement.job_id = text_of(environment, "LSB_JOBID");
  Slots slots = slots_of(text_of(environment, "LSB_MCPU_HOSTS"));
  // Of several slots on a host, blaunch -z uses one, and blaunch alone each.
  if (slots.hosts > 0 && slots.one_each) placement.num_nodes = slots.hosts;
  if (slots.hosts > 0) {
    placement.meeting = Placement::Meeting::kFirstHost;
    placement.first_host = std::move(slots.first_host);
  }
  placement.size_remedy =
      "the hosts have several slots; start ddp-run once on each host (blaunch -z \"HOST HOST...\") "
      "and set PET_NNODES to the number of hosts";
  placement.meeting_remedy = "set MASTER_ADDR to the first host of the job";
  return std::optional<Placement>(std::move(placement));
}

std::optional<BatchHosts> lsf_batch_hosts(const GetEnvironment& environment) {
  const std::string file = text_of(environment, "LSB_DJOB_HOSTFILE");
  const std::string job = text_of(environment, "LSB_JOBID");
  if (file.empty() || job.empty() || environment("LSF_PM_TASKID") != nullptr) return {};
  return BatchHosts{"LSF", "LSB_DJOB_HOSTFILE", file, job};
}

}  // namespace ddp::schedulers
