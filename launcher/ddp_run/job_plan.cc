#include "launcher/ddp_run/job_plan.h"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/log_folder.h"
#include "launcher/ddp_run/program.h"

namespace ddp::run {
namespace {

std::string random_id() {
  std::array<unsigned char, 8> bytes{};
  DDP_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
            "getrandom failed");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

Result<int> count_workers(const ProcessCount& count, const Machine& machine) {
  using Kind = ProcessCount::Kind;
  if (count.kind == Kind::kNumber) return count.number;
  const int gpus = count.kind == Kind::kCpu ? 0 : machine.cuda_devices();
  if (gpus > 0) return gpus;
  if (count.kind == Kind::kDevices) return 1;
  if (count.kind == Kind::kGpu) {
    return exit_error(
        kExitInvalidValue,
        "--nproc-per-node gpu: this machine has no CUDA device that may be used (/dev/nvidia*, "
        "CUDA_VISIBLE_DEVICES); write a number, cpu or auto");
  }
  return machine.usable_cores();
}

// The step's first node hosts, at an address that the others can reach.
void plan_step_endpoint(const Options& options, const Machine& machine, JobPlan& plan) {
  const slurm::Step& step = *options.step;
  plan.step_ports = options.step_ports;
  plan.endpoint_flag = fmt::format("SLURM step {}.{}", step.job_id, step.step_id);
  plan.host = options.is_host.value_or(step.node_rank == 0);
  plan.spec.coordinator_host =
      plan.host ? machine.locate_host(machine.host_name).address : step.hosts.front();
}

Result<void> plan_endpoint(const Options& options, const Machine& machine, JobPlan& plan) {
  if (!options.endpoint && !options.step_ports.empty()) {
    plan_step_endpoint(options, machine, plan);
    return {};
  }
  if (!options.endpoint) {
    plan.host = true;
    plan.bind_address = "127.0.0.1";
    plan.spec.coordinator_host = "127.0.0.1";
    return {};
  }
  plan.endpoint_flag = options.endpoint_flag;
  if (options.etcd) {
    plan.etcd = options.etcd;
    plan.spec.coordinator_host = options.endpoint->host;
    plan.spec.coordinator_port = options.endpoint->port;
    return {};
  }
  const HostPlace place = machine.locate_host(options.endpoint->host);
  plan.host = options.is_host.value_or(place.local &&
                                       (options.node_rank <= 0 || options.node_rank_is_slurms));
  plan.bind_address = place.loopback ? place.address : "";
  plan.spec.coordinator_host = place.address;
  plan.spec.coordinator_port = options.endpoint->port;
  if (options.endpoint->port == 0 && !plan.host) {
    return exit_error(kExitInvalidValue,
                      "{}: port 0 is only for a rendezvous that runs in this ddp-run; write a port",
                      options.endpoint_flag);
  }
  return {};
}

}  // namespace

bool is_follower(const Options& options) { return options.step && options.step->local_rank > 0; }

Result<JobPlan> plan_job(const Options& options, const Machine& machine) {
  JobPlan plan;
  config::JobSpec& spec = plan.spec;
  spec.job_id = options.job_id.value_or(options.endpoint ? "none" : random_id());
  spec.node_id = random_id();
  spec.host = options.step
                  ? options.step->hosts.at(static_cast<std::size_t>(options.step->node_rank))
                  : machine.host_name;
  plan.step = options.step;
  if (options.step) spec.expected_hosts = options.step->hosts;
  plan.requeue = options.step && options.requeue;
  plan.requeue_before_ms = options.requeue_before_ms;
  spec.signals_from_launcher = options.step.has_value();
  spec.in_tasks = options.step && options.step->tasks_here() > 1;
  spec.local_addr = options.local_addr;
  spec.node_rank = options.node_rank;
  if (auto planned = plan_endpoint(options, machine, plan); !planned) return planned.error();
  spec.min_nodes = options.min_nodes;
  spec.max_nodes = options.max_nodes;
  auto nproc = count_workers(options.nproc, machine);
  if (!nproc) return nproc.error();
  spec.nproc = *nproc;
  spec.max_restarts = options.max_restarts;
  spec.join_timeout_ms = options.join_timeout_ms;
  spec.last_call_ms = options.last_call_ms;
  spec.stop_timeout_ms = options.stop_timeout_ms;
  spec.coordinator_timeout_ms = options.coordinator_timeout_ms;
  spec.restart_on_start_failure = options.restart_on_start_failure;
  spec.max_no_progress = options.max_no_progress;
  spec.scale_up_ms = options.scale_up_ms;
  spec.progress_timeout_ms = options.progress_timeout_ms;
  spec.standby = options.standby;
  spec.program = options.program;
  spec.command = worker_command(options);
  spec.role = options.role;
  spec.single_node_prefix = false;  // Nobody else's lines are there to be told apart from.
  spec.output = options.output;
  auto log_dir = make_log_folder(options);
  if (!log_dir) return log_dir.error();
  spec.log_dir = std::move(*log_dir);
  return plan;
}

}  // namespace ddp::run
