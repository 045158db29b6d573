#include "agent/process/worker_env.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "common/config/rdzv_token.h"

namespace ddp::agent {
namespace {

using Variables = std::map<std::string, std::string>;

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

// `hidden` are variables that the worker must not see, whoever has set them. An empty error file
// would make torch's @record write to a file with an empty name, and the launcher above us has one
// of its own that is not the worker's to write.
std::vector<std::string> environment_of(Variables given, std::set<std::string> hidden,
                                        const WorkerEnvInputs& inputs, int nproc,
                                        const std::vector<std::string>& inherited) {
  // What lets a node into the job is not the programs' to know.
  hidden.insert(config::kTokenVariable);
  given["DDP_CONTROL_FD"] = std::to_string(inputs.control_fd);
  if (inputs.snapshots > 0) {
    given["DDP_SNAPSHOTS"] = std::to_string(inputs.snapshots);
  } else {
    hidden.insert("DDP_SNAPSHOTS");
  }
  if (inputs.error_file.empty()) {
    hidden.insert("TORCHELASTIC_ERROR_FILE");
  } else {
    given["TORCHELASTIC_ERROR_FILE"] = inputs.error_file;
  }
  Variables defaults = {
      {"OMP_NUM_THREADS", std::to_string(std::max(1, inputs.usable_cores / std::max(1, nproc)))},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"NCCL_ASYNC_ERROR_HANDLING", "1"},
  };
  std::vector<std::string> environment;
  environment.reserve(inherited.size() + given.size() + defaults.size());
  for (const std::string& entry : inherited) {
    const std::string name(name_of(entry));
    if (given.contains(name) || hidden.contains(name)) continue;
    defaults.erase(name);
    environment.push_back(entry);
  }
  for (const auto& [name, value] : given) environment.push_back(name + "=" + value);
  for (const auto& [name, value] : defaults) environment.push_back(name + "=" + value);
  return environment;
}

}  // namespace

Rank rank_of(const wire::RoundStart& round, int local_rank) {
  return round.members.at(static_cast<std::size_t>(round.group_rank)).first_rank + local_rank;
}

std::map<std::string, std::string> round_environment(const config::JobSpec& spec,
                                                     const wire::RoundStart& round,
                                                     int local_rank) {
  const wire::Member& self = round.members.at(static_cast<std::size_t>(round.group_rank));
  const std::string rank = std::to_string(rank_of(round, local_rank));
  const std::string world_size = std::to_string(round.world_size);
  return {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(self.nproc)},
      {"GROUP_RANK", std::to_string(round.group_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(round.members.size())},
      // All workers of a job have one role, so ranks among the workers of the role are the ranks.
      {"ROLE_NAME", spec.role},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world_size},
      {"MASTER_ADDR", round.master_addr},
      {"MASTER_PORT", std::to_string(round.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(round.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(round.max_restarts)},
      {"TORCHELASTIC_RUN_ID", spec.job_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},  // Python's spelling: PyTorch compares text.
      {"DDP_ROUND", std::to_string(round.round)},
      {"DDP_ROUND_REASON", round.reason},
      {"DDP_NODE_ID", spec.node_id},
  };
}

std::vector<std::string> worker_environment(const config::JobSpec& spec,
                                            const wire::RoundStart& round,
                                            const WorkerEnvInputs& inputs,
                                            const std::vector<std::string>& inherited) {
  const wire::Member& self = round.members.at(static_cast<std::size_t>(round.group_rank));
  Variables given = round_environment(spec, round, inputs.local_rank);
  given["DDP_SHM_FD"] = std::to_string(inputs.shm_fd);
  return environment_of(std::move(given), {"DDP_STANDBY"}, inputs, self.nproc, inherited);
}

std::vector<std::string> standby_environment(const config::JobSpec& spec,
                                             const WorkerEnvInputs& inputs,
                                             const std::vector<std::string>& inherited) {
  // An outer launcher's place is not this process's either.
  std::set<std::string> hidden{"DDP_SHM_FD"};
  wire::RoundStart nowhere;
  nowhere.members.resize(1);
  for (const auto& [name, value] : round_environment(spec, nowhere, 0)) hidden.insert(name);
  Variables given{
      {"DDP_STANDBY", "1"}, {"DDP_NODE_ID", spec.node_id}, {"TORCHELASTIC_RUN_ID", spec.job_id}};
  return environment_of(std::move(given), std::move(hidden), inputs, spec.nproc, inherited);
}

}  // namespace ddp::agent
