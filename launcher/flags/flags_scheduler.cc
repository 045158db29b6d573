// Values that come from the scheduler that has started this ddp-run, where no flag gives them.
// SLURM's are in flags_slurm.cc.
#include <fstream>
#include <iterator>
#include <utility>

#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"
#include "launcher/schedulers/batch_hosts.h"

namespace ddp::flags {
namespace {

using schedulers::Placement;

// False if the scheduler has no say in the job's nodes.
bool take_nodes(FlagReader& reader, Options& options, const Placement& placement) {
  auto& rules = options.spec.rules;
  const GivenFlag* given = reader.find("nnodes");
  if (given == nullptr && !placement.num_nodes) {
    // With an endpoint, the line is torchrun's, where one node is the default.
    if (reader.names_an_endpoint()) return false;
    reader.fail(exit_error(kExitInvalidValue,
                           "{}: {} does not say how many nodes the job has; {} (or --nnodes)",
                           placement.source, placement.scheduler, placement.size_remedy));
    return false;
  }
  if (given == nullptr) rules.min_nodes = rules.max_nodes = *placement.num_nodes;
  if (placement.num_nodes && rules.min_nodes > *placement.num_nodes) {
    // Some scripts start the nodes of a job one by one. Then flags give the ranks.
    if (reader.names_an_endpoint()) return false;
    reader.wrong(given->shown,
                 "{} has started {} here and elsewhere; leave the flag out, or start more; to join "
                 "the nodes of several starts, add --rdzv-endpoint and --node-rank",
                 placement.scheduler, *placement.num_nodes);
    return false;
  }
  // Nodes beyond MAX are spares and have no rank.
  if (placement.node_rank < rules.max_nodes && !reader.has("node-rank")) {
    options.spec.node_rank = placement.node_rank;
    options.node_rank_is_schedulers = reader.has("rdzv-endpoint");
  }
  return rules.max_nodes > 1;
}

// MASTER_ADDR, which scripts for torch.distributed set. False if it is not set.
bool take_master(FlagReader& reader, Options& options) {
  const char* address = reader.environment("MASTER_ADDR");
  if (address == nullptr || *address == 0) return false;
  auto host = parse_host(address);
  if (!host) {
    reader.fail(exit_error(kExitInvalidValue, "MASTER_ADDR={}: {}", address, host.error().message));
    return true;
  }
  int port = options.placement->port;
  const char* text = reader.has("master-port") ? nullptr : reader.environment("MASTER_PORT");
  if (text != nullptr && *text != 0) {
    const auto number = parse_integer(text, 1, 65'535);
    if (!number) {
      reader.fail(
          exit_error(kExitInvalidValue, "MASTER_PORT={}: {}", text, number.error().message));
    } else {
      port = *number;
    }
  }
  options.endpoint = HostPort{std::move(*host), port};
  options.endpoint_flag = fmt::format("MASTER_ADDR={}", address);
  options.endpoint_is_master = true;
  return true;
}

// One worker for each device, as under SLURM. With an endpoint, the line is torchrun's.
void take_workers(FlagReader& reader, Options& options) {
  if (reader.names_an_endpoint() || reader.has("nproc-per-node") || reader.has("devices")) return;
  const Placement& placement = *options.placement;
  options.nproc = {ProcessCount::Kind::kDevices, 1};
  if (placement.nodes_here == 1) return;
  reader.fail(exit_error(
      kExitInvalidValue,
      "{}: {} has started {} ddp-runs on this machine, where one starts all workers; start one on "
      "each machine ({}), or say with --nproc-per-node how many workers each of them has",
      placement.source, placement.scheduler, placement.nodes_here, placement.one_a_machine));
}

void take_meeting(FlagReader& reader, Options& options) {
  Placement& placement = *options.placement;
  if (const auto port = reader.value<int>(
          "master-port", [](const std::string& text) { return parse_integer(text, 1, 65'535); }))
    placement.port = *port;
  if (reader.names_an_endpoint()) return;
  if (take_master(reader, options) || placement.meeting != Placement::Meeting::kUnknown) return;
  reader.fail(exit_error(kExitInvalidValue, "{}: {} does not say where the nodes meet; {}",
                         placement.source, placement.scheduler, placement.meeting_remedy));
}

}  // namespace

// In a batch script the scheduler's hosts stand for --hosts, unless a flag says which nodes there
// are.
void read_batch_hosts(FlagReader& reader, Options& options) {
  if (options.standalone || reader.names_an_endpoint()) return;
  for (const char* name : {"hosts", "hostfile", "node-rank"})
    if (reader.has(name)) return;
  if (reader.has("nnodes") && options.spec.rules.max_nodes == 1) return;
  const auto batch = schedulers::find_batch_hosts(
      [&reader](const char* name) { return reader.environment(name); });
  if (!batch) return;
  const std::string shown = fmt::format("{}={}", batch->variable, batch->file);
  std::ifstream file(batch->file);
  const std::string lines(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open()) {
    return reader.wrong(shown,
                        "cannot be read, so the job's hosts are not known; name them with --hosts, "
                        "or add --standalone to run on this machine alone");
  }
  auto hosts = hosts::parse_host_list(schedulers::hosts_once(lines));
  if (!hosts) return reader.wrong(shown, "{}", hosts.error().message);
  if (hosts->size() < 2) return;
  options.host_list = std::move(*hosts);
  options.job_id = batch->job_id;
  options.scheduler = fmt::format("{} ({})", batch->scheduler, shown);
}

void read_scheduler_flags(FlagReader& reader, Options& options) {
  if (options.standalone) return;
  auto placement =
      schedulers::read_placement([&reader](const char* name) { return reader.environment(name); });
  if (!placement) {
    if (!reader.names_an_endpoint())
      reader.fail(exit_error(kExitInvalidValue, "{}", placement.error().message));
    return;
  }
  if (!*placement || !take_nodes(reader, options, **placement)) return;
  options.placement = std::move(**placement);
  options.scheduler =
      fmt::format("{} ({})", options.placement->scheduler, options.placement->source);
  if (!options.placement->job_id.empty()) options.job_id = options.placement->job_id;
  take_workers(reader, options);
  take_meeting(reader, options);
}

}  // namespace ddp::flags
