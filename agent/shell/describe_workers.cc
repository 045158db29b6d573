#include "agent/shell/describe_workers.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <asio/io_context.hpp>
#include <fmt/format.h>

#include "agent/process/cpu_binding.h"
#include "agent/process/worker_command.h"
#include "agent/process/worker_env.h"
#include "agent/shell/worker_store.h"
#include "common/base/exit_codes.h"
#include "common/base/shell_words.h"
#include "common/process/this_process.h"

namespace ddp::agent {
namespace {

// Values that are not known before the start, by variable.
const std::map<std::string, std::string, std::less<>> kDecidedLater{
    {"DDP_CONTROL_FD", "(a descriptor)"},
    {"DDP_NODE_ID", "(random)"},
    {"DDP_SHM_FD", "(a descriptor)"},
    {"TORCHELASTIC_ERROR_FILE", "(a file of this job)"},
};

// Where they say the rendezvous' port, which the system may choose.
const std::set<std::string, std::less<>> kRendezvousPorts{"DDP_COORDINATOR_PORT", "DDP_STORE_PORT",
                                                          "MASTER_PORT"};

// Stands for the port that rank 0's store will get.
constexpr int kSomePort = 1;

// "0-3,8".
std::string cpu_list(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (end - i > 1) text += fmt::format("-{}", cpus[end - 1]);
    i = end;
  }
  return text;
}

wire::RoundStart first_round(const config::JobSpec& spec, const WorkerStore& store) {
  wire::RoundStart round;
  round.max_restarts = spec.rules.max_restarts;
  const std::vector<int> workers =
      spec.dry_run_workers.empty()
          ? std::vector<int>(static_cast<std::size_t>(spec.rules.min_nodes), spec.nproc)
          : spec.dry_run_workers;
  round.group_rank = std::clamp(spec.node_rank, 0, static_cast<int>(workers.size()) - 1);
  round.world_size = 0;
  std::vector<wire::Member> members;
  for (const int nproc : workers) {
    members.push_back(
        {spec.node_id, spec.host, spec.local_addr, nproc, round.world_size, spec.role});
    round.world_size += nproc;
  }
  round.members = wire::MemberList(std::move(members));
  round.master_addr = spec.coordinator_host;
  round.master_port = spec.coordinator_port;
  round.reason = "first round";
  if (store.is_needed()) round.store_port = kSomePort;
  return round;
}

// The variables that differ from the inherited ones, by name.
std::string describe_environment(const config::JobSpec& spec, const wire::RoundStart& round,
                                 const std::vector<std::string>& environment,
                                 const std::vector<std::string>& inherited) {
  const std::set<std::string> known(inherited.begin(), inherited.end());
  std::set<std::string> lines;
  for (const std::string& entry : environment) {
    if (known.contains(entry)) continue;
    const std::string name = entry.substr(0, entry.find('='));
    const auto later = kDecidedLater.find(name);
    if (later != kDecidedLater.end()) {
      lines.insert(fmt::format("  {}={}\n", name, later->second));
    } else if (name == "OMP_NUM_THREADS" && !spec.dry_run_workers.empty()) {
      lines.insert(fmt::format("  {}=(its share of the host's CPUs)\n", name));
    } else if (name == "MASTER_PORT" && round.store_port != 0) {
      lines.insert(fmt::format("  {}=(a free port of node 0)\n", name));
    } else if (kRendezvousPorts.contains(name) && spec.coordinator_port == 0) {
      lines.insert(fmt::format("  {}=(the rendezvous' port)\n", name));
    } else {
      lines.insert(fmt::format("  {}={}\n", name, shell_quote(entry.substr(name.size() + 1))));
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

std::string describe(const config::JobSpec& spec, const WorkerStore& store,
                     const std::vector<std::string>& inherited,
                     const std::vector<WorkerCpus>& cpus) {
  const wire::RoundStart round = first_round(spec, store);
  std::string text;
  if (!spec.dry_run_workers.empty()) {
    if (spec.rules.min_nodes < spec.rules.max_nodes)
      text += "ranks and the world are decided when the nodes have met; here: all that may be\n";
  } else if (spec.rules.max_nodes > 1) {
    text += fmt::format(
        "ranks and the world are decided when the nodes have met; here: node {} of {} like it\n",
        round.group_rank, spec.rules.min_nodes);
  }
  for (int local_rank = 0; local_rank < spec.nproc; ++local_rank) {
    const auto index = static_cast<std::size_t>(local_rank);
    const bool bound = index < cpus.size();
    const WorkerEnvInputs inputs{.local_rank = local_rank,
                                 .usable_cores = std::max(1, spec.usable_cores),
                                 .threads = bound ? cpus[index].threads : 0,
                                 .torch_lacks_libuv = store.torch_lacks_libuv(),
                                 .error_file = "(a file of this job)"};
    std::string command;
    for (const std::string& word : command_of(spec.command, local_rank))
      command += (command.empty() ? "" : " ") + shell_quote(word);
    text += fmt::format("\nworker {}: {}\n", rank_of(round, local_rank), command);
    if (bound) text += fmt::format("  on CPUs {}\n", cpu_list(cpus[index].cpus));
    text += describe_environment(spec, round, worker_environment(spec, round, inputs, inherited),
                                 inherited);
  }
  return text;
}

}  // namespace

std::string describe_workers(const config::JobSpec& spec,
                             const std::vector<std::string>& inherited) {
  asio::io_context io(1);
  WorkerStore store(io, spec);
  store.examine([&io] { io.stop(); });
  io.run();
  const auto cpus = bind_workers(spec);
  return describe(spec, store, inherited, cpus ? *cpus : std::vector<WorkerCpus>());
}

int print_dry_run(const config::JobSpec& spec) {
  if (const auto cpus = bind_workers(spec); !cpus) {
    std::fprintf(stderr, "ddp-run: %s\n", cpus.error().message.c_str());
    return kExitInvalidValue;
  }
  std::fputs(describe_workers(spec, own_environment()).c_str(), stdout);
  return kExitSuccess;
}

}  // namespace ddp::agent
