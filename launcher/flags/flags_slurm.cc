// Values that come from the SLURM step, where no flag gives them.
#include <fmt/format.h>

#include "launcher/flags/flag_reader.h"
#include "launcher/flags/flag_values.h"

namespace ddp::flags {
namespace {

// Whether the job has more nodes than this step. Some scripts start one srun for each node. Then no
// step knows the others, and flags give the node's rank and the endpoint.
bool is_part_of_job(const FlagReader& reader, const Options& options, const slurm::Step& step) {
  if (!reader.names_an_endpoint() || !reader.has("nnodes")) return false;
  // A step of several nodes may be a whole job that can grow, so there only MIN counts.
  const int nodes =
      step.num_nodes() == 1 ? options.spec.rules.max_nodes : options.spec.rules.min_nodes;
  return nodes > step.num_nodes();
}

void take_nodes(FlagReader& reader, Options& options, const slurm::Step& step) {
  const GivenFlag* given = reader.find("nnodes");
  if (given == nullptr) {
    options.spec.rules.min_nodes = options.spec.rules.max_nodes = step.num_nodes();
  } else if (options.spec.rules.min_nodes > step.num_nodes()) {
    reader.wrong(given->shown,
                 "the SLURM step has {} nodes; leave the flag out, or ask srun for more (-N {}); "
                 "to join the nodes of several steps, add --rdzv-endpoint",
                 step.num_nodes(), options.spec.rules.min_nodes);
  }
  // Nodes beyond MAX are spares and have no rank.
  if (options.spec.rules.max_nodes == 1 || step.node_rank >= options.spec.rules.max_nodes ||
      reader.has("node-rank"))
    return;
  options.spec.node_rank = step.node_rank;
  options.node_rank_is_schedulers = true;
}

void take_workers(FlagReader& reader, Options& options, const slurm::Step& step) {
  using Kind = ProcessCount::Kind;
  const GivenFlag* given = reader.find("nproc-per-node");
  if (!step.tasks_are_workers()) {
    if (given == nullptr) options.nproc = {Kind::kDevices, 1};
    return;
  }
  if (given != nullptr && options.nproc.kind == Kind::kNumber &&
      options.nproc.number != step.tasks_here()) {
    reader.wrong(
        given->shown,
        "srun has started {} tasks on this node, and each is a worker; leave the flag out, "
        "or start one task on each node (srun --ntasks-per-node=1)",
        step.tasks_here());
  }
  if (const GivenFlag* standby = reader.find("standby"); standby != nullptr) {
    reader.wrong(standby->shown,
                 "a standby worker has no srun task to run in; start one task on each node (srun "
                 "--ntasks-per-node=1)");
  }
  options.nproc = {Kind::kNumber, step.tasks_here()};
  if (!step.ranks_follow_nodes() && step.rank == 1) {
    options.warnings.push_back(
        "with this distribution of tasks, ranks count node by node and differ from SLURM_PROCID; "
        "srun -m block makes them the same");
  }
}

void take_rendezvous(FlagReader& reader, Options& options, const slurm::Step& step) {
  options.job_id = options.step_is_part ? step.shared_run_id() : step.run_id();
  const GivenFlag* backend = reader.find("rdzv-backend");
  const bool etcd = backend != nullptr && backend->value.starts_with("etcd");
  if (reader.names_an_endpoint() || etcd || step.num_nodes() == 1) return;
  options.step_ports = slurm::rendezvous_ports(step);
  if (const auto port = reader.value<int>(
          "master-port", [](const std::string& text) { return parse_integer(text, 1, 65'535); })) {
    options.step_ports = {*port};
  }
}

}  // namespace

void read_slurm_flags(FlagReader& reader, Options& options) {
  options.requeue = !reader.has("no-requeue");
  reader.take(
      "requeue-before", [](const std::string& text) { return parse_seconds(text, true); },
      options.requeue_before_ms);
  if (options.standalone || options.placement) return;
  auto step = slurm::read_step([&reader](const char* name) { return reader.environment(name); });
  if (!step) {
    if (!reader.names_an_endpoint())
      reader.fail(exit_error(kExitInvalidValue, "{}", step.error().message));
    return;
  }
  if (!*step) return;
  options.step_is_part = is_part_of_job(reader, options, **step);
  if (!options.step_is_part) take_nodes(reader, options, **step);
  take_workers(reader, options, **step);
  take_rendezvous(reader, options, **step);
  options.step = std::move(**step);
  options.scheduler =
      fmt::format("SLURM (step {}.{})", options.step->job_id, options.step->step_id);
}

}  // namespace ddp::flags
