#include "agent/process/worker_env.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/host_port.h"
#include "common/config/rdzv_token.h"

namespace ddp::agent {
namespace {

using Variables = std::map<std::string, std::string>;

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

// `hidden` are variables that the worker must not see, even if the user has set them. The error
// file is hidden if it is empty: torch's @record would write to a file with an empty name, and the
// error file of a launcher above this one is not for the worker.
std::vector<std::string> environment_of(Variables given, std::set<std::string> hidden,
                                        const config::JobSpec& spec, const WorkerEnvInputs& inputs,
                                        int nproc, const std::vector<std::string>& inherited) {
  // The workers' programs must not know the token.
  hidden.insert(config::kTokenVariable);
  given["DDP_CONTROL_FD"] = std::to_string(inputs.control_fd);
  given["TORCHELASTIC_SIGNALS_TO_HANDLE"] = spec.signals_to_handle;
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
  // These may come from a launcher above this one.
  hidden.insert({"DDP_STORE_ADDR", "DDP_STORE_PORT"});
  if (!inputs.timer_file.empty()) given["TORCHELASTIC_TIMER_FILE"] = inputs.timer_file;
  hidden.insert("DDP_LOCAL_RANK");
  const int share = std::max(1, inputs.usable_cores / std::max(1, nproc));
  Variables defaults = {
      {"OMP_NUM_THREADS", std::to_string(inputs.threads > 0 ? inputs.threads : share)},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
  };
  if (inputs.torch_lacks_libuv) defaults["USE_LIBUV"] = "0";
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

// CUDA_VISIBLE_DEVICES; empty: the inherited value.
std::optional<std::string> visible_devices(const config::JobSpec& spec, int local_rank) {
  const auto index = static_cast<std::size_t>(local_rank);
  if (spec.virtual_local_rank) {
    return index < spec.devices.size() ? spec.devices[index] : std::to_string(local_rank);
  }
  if (spec.devices.empty()) return std::nullopt;
  std::string list;
  for (const std::string& device : spec.devices) list += (list.empty() ? "" : ",") + device;
  return list;
}

// Names the workers' store. A store that rank 0 makes is on the first node. If the coordinator sees
// the first node at a loopback address, both are on one machine, so other nodes find the store at
// the coordinator's address. Programs with libddp always use the store of the rendezvous, which
// outlives rank 0.
void name_store(const wire::RoundStart& round, Variables& given) {
  const std::string port = std::to_string(round.master_port);
  const std::string& coordinator =
      round.coordinator_addr.empty() ? round.master_addr : round.coordinator_addr;
  given["DDP_COORDINATOR_ADDR"] = coordinator;
  given["DDP_COORDINATOR_PORT"] =
      round.coordinator_port == 0 ? port : std::to_string(round.coordinator_port);
  if (round.store_port == 0) {
    given["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // Python's spelling: PyTorch compares text.
    given["MASTER_ADDR"] = round.master_addr;
    given["MASTER_PORT"] = port;
    return;
  }
  const std::string& first = round.members.at(0).address;
  const bool is_with_coordinator = first.empty() || is_loopback(first);
  given["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  given["MASTER_ADDR"] = is_with_coordinator ? coordinator : first;
  given["MASTER_PORT"] = std::to_string(round.store_port);
  given["DDP_STORE_ADDR"] = round.master_addr;
  given["DDP_STORE_PORT"] = port;
}

}  // namespace

Rank rank_of(const wire::RoundStart& round, int local_rank) {
  return round.members.at(static_cast<std::size_t>(round.group_rank)).first_rank + local_rank;
}

RolePlace role_place(const wire::RoundStart& round) {
  const auto group_rank = static_cast<std::size_t>(round.group_rank);
  const std::string& role = round.members.at(group_rank).role;
  RolePlace place;
  for (std::size_t i = 0; i < round.members.size(); ++i) {
    const wire::Member& member = round.members[i];
    if (member.role != role) continue;
    if (i < group_rank) place.first_rank += member.nproc;
    place.workers += member.nproc;
  }
  return place;
}

std::map<std::string, std::string> round_environment(const config::JobSpec& spec,
                                                     const wire::RoundStart& round,
                                                     int local_rank) {
  const wire::Member& self = round.members.at(static_cast<std::size_t>(round.group_rank));
  const std::string rank = std::to_string(rank_of(round, local_rank));
  const std::string world_size = std::to_string(round.world_size);
  const RolePlace place = role_place(round);
  Variables given = {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(spec.virtual_local_rank ? 0 : local_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(self.nproc)},
      {"GROUP_RANK", std::to_string(round.group_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(round.members.size())},
      {"ROLE_NAME", spec.role},
      {"ROLE_RANK", std::to_string(place.first_rank + local_rank)},
      {"ROLE_WORLD_SIZE", std::to_string(place.workers)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(round.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(round.max_restarts)},
      {"TORCHELASTIC_RUN_ID", spec.job_id},
      {"DDP_ROUND", std::to_string(round.round)},
      {"DDP_ROUND_REASON", round.reason},
      {"DDP_NODE_ID", spec.node_id},
  };
  name_store(round, given);
  // LOCAL_RANK is then the number of a device. libddp needs the place among the workers of the
  // node.
  if (spec.virtual_local_rank) given["DDP_LOCAL_RANK"] = std::to_string(local_rank);
  return given;
}

std::vector<std::string> worker_environment(const config::JobSpec& spec,
                                            const wire::RoundStart& round,
                                            const WorkerEnvInputs& inputs,
                                            const std::vector<std::string>& inherited) {
  const wire::Member& self = round.members.at(static_cast<std::size_t>(round.group_rank));
  Variables given = round_environment(spec, round, inputs.local_rank);
  given["DDP_SHM_FD"] = std::to_string(inputs.shm_fd);
  if (auto devices = visible_devices(spec, inputs.local_rank))
    given["CUDA_VISIBLE_DEVICES"] = std::move(*devices);
  return environment_of(std::move(given), {"DDP_STANDBY"}, spec, inputs, self.nproc, inherited);
}

std::vector<std::string> standby_environment(const config::JobSpec& spec,
                                             const WorkerEnvInputs& inputs,
                                             const std::vector<std::string>& inherited) {
  // Nor must it see its place under an outer launcher.
  std::set<std::string> hidden{"DDP_SHM_FD"};
  wire::RoundStart nowhere;
  nowhere.members.resize(1);
  for (const auto& [name, value] : round_environment(spec, nowhere, 0)) hidden.insert(name);
  Variables given{
      {"DDP_STANDBY", "1"}, {"DDP_NODE_ID", spec.node_id}, {"TORCHELASTIC_RUN_ID", spec.job_id}};
  if (auto devices = visible_devices(spec, 0)) given["CUDA_VISIBLE_DEVICES"] = std::move(*devices);
  return environment_of(std::move(given), std::move(hidden), spec, inputs, spec.nproc, inherited);
}

}  // namespace ddp::agent
