#include "agent/process/worker_env.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace ddp::agent {
namespace {

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

Rank rank_of(const wire::RoundStart& round, int local_rank) {
  return round.members.at(static_cast<std::size_t>(round.group_rank)).first_rank + local_rank;
}

std::vector<std::string> worker_environment(const config::JobSpec& spec,
                                            const wire::RoundStart& round,
                                            const WorkerEnvInputs& inputs,
                                            const std::vector<std::string>& inherited) {
  const wire::Member& self = round.members.at(static_cast<std::size_t>(round.group_rank));
  const std::string rank = std::to_string(rank_of(round, inputs.local_rank));
  const std::string world_size = std::to_string(round.world_size);

  const std::map<std::string, std::string, std::less<>> given = {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(inputs.local_rank)},
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
      {"TORCHELASTIC_ERROR_FILE", inputs.error_file},
      {"DDP_ROUND", std::to_string(round.round)},
      {"DDP_ROUND_REASON", round.reason},
      {"DDP_NODE_ID", spec.node_id},
      {"DDP_CONTROL_FD", std::to_string(inputs.control_fd)},
      {"DDP_SHM_FD", std::to_string(inputs.shm_fd)},
  };
  std::map<std::string, std::string, std::less<>> defaults = {
      {"OMP_NUM_THREADS",
       std::to_string(std::max(1, inputs.usable_cores / std::max(1, self.nproc)))},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"NCCL_ASYNC_ERROR_HANDLING", "1"},
  };

  std::vector<std::string> environment;
  environment.reserve(inherited.size() + given.size() + defaults.size());
  for (const std::string& entry : inherited) {
    const std::string_view name = name_of(entry);
    if (given.contains(name)) continue;
    if (const auto found = defaults.find(name); found != defaults.end()) defaults.erase(found);
    environment.push_back(entry);
  }
  for (const auto& [name, value] : given) {
    // An empty error file would make torch's @record write to a file with an empty name; the
    // launcher above us has one of its own that is not the worker's to write.
    if (name == "TORCHELASTIC_ERROR_FILE" && value.empty()) continue;
    environment.push_back(name + "=" + value);
  }
  for (const auto& [name, value] : defaults) environment.push_back(name + "=" + value);
  return environment;
}

}  // namespace ddp::agent
