#include "worker/trainer_launch/launch_plan.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "common/base/parse_number.h"
#include "worker/runtime/srun_tasks.h"

namespace ddp::trainer {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument("Trainer: " + text);
}

std::string how_to_start(const WantedWorkers& wanted) {
  const int devices = wanted.devices > 0 ? wanted.devices : 1;
  return fmt::format(
      "on every node `ddp-run --nnodes {0} --nproc-per-node {1} --rdzv-endpoint HOST PROGRAM`, "
      "from "
      "one node `ddp-run --hosts HOST,HOST... --nproc-per-node {1} PROGRAM`, in a job of SLURM "
      "`srun "
      "--nodes {0} ddp-run --nproc-per-node {1} PROGRAM`",
      wanted.num_nodes, devices);
}

// A variable that is not there, or is no number, says nothing.
int number_or(const Lookup& lookup, const char* name, int otherwise) {
  return parse_whole_number<int>(lookup(name).value_or(""), 1).value_or(otherwise);
}

LaunchPlan plan_alone(const WantedWorkers& wanted, const Lookup& lookup) {
  using Start = LaunchPlan::Start;
  const runtime::SrunTasks tasks = runtime::srun_tasks(lookup);
  // One task on a node starts that node's workers; several are the workers.
  const int workers = tasks.all > tasks.nodes || wanted.devices < 2 ? 0 : wanted.devices;
  if (tasks.all > 1) return {Start::kStep, workers, wanted.max_restarts};
  if (wanted.num_nodes > 1) {
    refuse(
        fmt::format("num_nodes {}: this process was started alone, and a program can start "
                    "itself on its own node only; start it {}",
                    wanted.num_nodes, how_to_start(wanted)));
  }
  if (workers == 0) return {};
  return {tasks.all > 0 ? Start::kStep : Start::kWorkers, workers, wanted.max_restarts};
}

}  // namespace

LaunchPlan plan_launch(const WantedWorkers& wanted, const Lookup& lookup) {
  const bool is_alone = !lookup("WORLD_SIZE") && !lookup("DDP_STANDBY");
  const int world =
      is_alone ? std::max(runtime::srun_tasks(lookup).all, 1) : number_or(lookup, "WORLD_SIZE", 1);
  if (wanted.one_process) {
    if (world == 1) return {};
    refuse(
        fmt::format("strategy \"{}\" is one process, but the launcher has started {}; start the "
                    "program alone, or take strategy \"ddp\"",
                    wanted.strategy, world));
  }
  if (is_alone) return plan_alone(wanted, lookup);
  const int local = number_or(lookup, "LOCAL_WORLD_SIZE", wanted.devices);
  if (wanted.devices > 0 && wanted.devices != local) {
    refuse(
        fmt::format("devices {}, but the launcher has started {} on this node "
                    "(--nproc-per-node); leave devices out to take what there is",
                    wanted.devices, local));
  }
  const int nodes = number_or(lookup, "GROUP_WORLD_SIZE", wanted.num_nodes);
  if (wanted.num_nodes > 0 && wanted.num_nodes != nodes) {
    refuse(
        fmt::format("num_nodes {}, but the launcher has {} (--nnodes); leave num_nodes out to "
                    "take what there is",
                    wanted.num_nodes, nodes));
  }
  return {};
}

std::vector<std::string> launch_command(const std::string& launcher, const LaunchPlan& plan,
                                        const std::vector<std::string>& program) {
  std::vector<std::string> command = {launcher};
  if (plan.start == LaunchPlan::Start::kWorkers) command.emplace_back("--standalone");
  if (plan.workers > 0)
    command.insert(command.end(), {"--nproc-per-node", std::to_string(plan.workers)});
  command.insert(command.end(),
                 {"--max-restarts", std::to_string(plan.max_restarts), "--no-python", "--"});
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace ddp::trainer
