#include "launcher/plan/job_plan.h"

#include <filesystem>
#include <utility>

#include "common/base/exit_error.h"
#include "common/base/host_port.h"
#include "common/base/random_hex.h"
#include "launcher/flags/flags_access.h"
#include "launcher/plan/log_folder.h"
#include "launcher/plan/node_plan.h"
#include "launcher/plan/program.h"
#include "launcher/plan/scheduled_endpoint.h"

namespace ddp::plan {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr int kReplicas = 3;         // One of three may be lost at any moment.
constexpr std::size_t kIdBytes = 8;  // Of random ids of jobs and nodes.

// The agent has the same working directory today, but nothing guarantees that.
std::string absolute_event_log(const std::string& event_log) {
  constexpr std::string_view kJson = "json:";
  if (!event_log.starts_with(kJson)) return event_log;
  std::error_code error;
  const auto path = std::filesystem::absolute(event_log.substr(kJson.size()), error);
  return error ? event_log : std::string(kJson) + path.lexically_normal().string();
}

// The step's first node hosts the rendezvous, at an address that the others can reach.
void plan_step_endpoint(const flags::Options& options, const machine::Machine& machine,
                        JobPlan& plan) {
  const slurm::Step& step = *options.step;
  plan.step_ports = options.step_ports;
  plan.endpoint_flag = fmt::format("SLURM step {}.{}", step.job_id, step.step_id);
  plan.host = options.is_host.value_or(step.node_rank == 0);
  plan.spec.coordinator_host =
      plan.host ? machine.locate_host(machine.host_name).address : step.hosts.front();
}

// The first node to come hosts the rendezvous, at an address that the others can reach.
void plan_meeting_file(const flags::Options& options, const machine::Machine& machine,
                       JobPlan& plan) {
  plan.meeting_file = options.meeting_file;
  plan.endpoint_flag = options.endpoint_flag;
  plan.host = true;
  plan.spec.coordinator_host = machine.locate_host(machine.host_name).address;
  if (options.spec.rules.max_nodes > 1 || is_guarded(plan.spec)) return;
  plan.bind_address = kLoopback;
  plan.spec.coordinator_host = kLoopback;
}

Result<void> plan_endpoint(const flags::Options& options, const machine::Machine& machine,
                           JobPlan& plan) {
  if (!options.meeting_file.empty()) {
    plan_meeting_file(options, machine, plan);
    return {};
  }
  if (!options.endpoint && !options.step_ports.empty()) {
    plan_step_endpoint(options, machine, plan);
    return {};
  }
  if (!options.endpoint) {
    plan.host = true;
    plan.bind_address = kLoopback;
    plan.spec.coordinator_host = kLoopback;
    return {};
  }
  plan.endpoint_flag = options.endpoint_flag;
  if (options.etcd) {
    plan.etcd = options.etcd;
    plan.spec.coordinator_host = options.endpoint->host;
    plan.spec.coordinator_port = options.endpoint->port;
    return {};
  }
  const machine::HostPlace place = machine.locate_host(options.endpoint->host);
  const bool is_master =
      options.endpoint_is_master && options.spec.node_rank == 0 && !options.node_rank_is_schedulers;
  const bool may_host = options.spec.node_rank <= 0 || options.node_rank_is_schedulers ||
                        options.spec.node_rank_is_wish;
  plan.host = options.is_host.value_or(is_master || (place.local && may_host));
  plan.bind_address = place.loopback ? place.address : "";
  plan.spec.coordinator_host = place.address;
  if (plan.host && is_master && !place.local) {
    // The address leads here from outside (through a NAT or a service), or to a daemon elsewhere.
    plan.outside_address = place.address;
    plan.spec.coordinator_host = machine.locate_host(machine.host_name).address;
  }
  if (plan.host && !place.loopback && options.spec.rules.max_nodes == 1 && !is_guarded(plan.spec)) {
    // No other node is expected, and without a token a stranger could not be told from one.
    plan.outside_address = place.address;
    plan.bind_address = kLoopback;
    plan.spec.coordinator_host = kLoopback;
  }
  plan.spec.coordinator_port = options.endpoint->port;
  if (options.endpoint->port == 0 && !plan.host) {
    return exit_error(kExitInvalidValue,
                      "{}: port 0 is only for a rendezvous that runs in this ddp-run; write a port",
                      options.endpoint_flag);
  }
  return {};
}

}  // namespace

bool is_follower(const flags::Options& options) {
  return options.step && options.step->local_rank > 0;
}

std::string warning_if_open(const config::JobSpec& spec, const std::string& bind_address) {
  if (is_loopback(bind_address) || is_guarded(spec)) return {};
  return "anybody who reaches the rendezvous can join this job and write to its store; to let in "
         "only its own nodes, give all of them the same --rdzv-token-file FILE or DDP_RDZV_TOKEN "
         "(`openssl rand -hex 32` makes one)";
}

std::string what_its_loss_means(const JobPlan& plan) {
  if (plan.replicas > 1 || plan.etcd || plan.spec.rules.max_nodes < 2) return {};
  return fmt::format(
      "if this node ({}) is lost, the job waits {} s for it (--coordinator-timeout), then ends; "
      "with three nodes or more, or with --rdzv-backend etcd, another node takes over",
      plan.spec.host, plan.spec.coordinator_timeout_ms / 1'000);
}

std::string where_to_watch(const JobPlan& plan) {
  if (!plan.port_is_chosen || !plan.spec.output.status_line) return {};
  const std::string at = host_and_port(plan.spec.coordinator_host, plan.spec.coordinator_port);
  return fmt::format("look at this job at http://{}/, or with: ddp-run top {}", at, at);
}

Result<JobPlan> plan_job(const flags::Options& given, const machine::Machine& machine) {
  const auto completed = with_scheduled_endpoint(given, machine);
  if (!completed) return completed.error();
  const flags::Options& options = *completed;
  JobPlan plan;
  config::JobSpec& spec = plan.spec;
  spec = options.spec;
  plan.is_check = options.is_check;
  const bool meets_others = options.endpoint || !options.meeting_file.empty();
  spec.job_id = options.job_id.value_or(meets_others ? "none" : random_hex(kIdBytes));
  spec.node_id = random_hex(kIdBytes);
  spec.host = options.step
                  ? options.step->hosts.at(static_cast<std::size_t>(options.step->node_rank))
                  : machine.host_name;
  plan.scheduler = options.scheduler;
  plan.step = options.step;
  plan.step_is_part = options.step_is_part;
  if (options.step && !options.step_is_part) spec.expected_hosts = options.step->hosts;
  plan.requeue = options.step && options.requeue;
  plan.requeue_before_ms = options.requeue_before_ms;
  spec.signals_from_launcher = options.step.has_value();
  spec.in_tasks = options.step && options.step->tasks_here() > 1;
  auto token = flags::job_token(options);
  if (!token) return token.error();
  spec.rdzv_token = std::move(*token);
  // Without an endpoint, the job stays on the loopback interface, except in a SLURM step.
  if (meets_others || !options.step_ports.empty()) {
    spec.tls = options.tls;
    if (!options.meeting_file.empty()) {
      spec.tls_name = spec.host;
    } else if (!options.endpoint)
      spec.tls_name = options.step->hosts.front();
    // With etcd any node may be the coordinator, so there is no one name to check.
    if (options.endpoint && !options.etcd) spec.tls_name = options.endpoint->host;
  }
  if (auto planned = plan_endpoint(options, machine, plan); !planned) return planned.error();
  if (auto planned = plan_node(options, machine, spec); !planned) return planned.error();
  if (!options.meeting_file.empty() && plan.bind_address.empty() && !spec.local_addr.empty())
    spec.coordinator_host = spec.local_addr;
  plan.replicas = options.replicas.value_or(spec.rules.max_nodes >= kReplicas ? kReplicas : 1);
  if (plan.etcd) plan.replicas = 1;
  // Any node may be the coordinator, so there is no one name to check.
  if (plan.replicas > 1) spec.tls_name.clear();
  spec.command = worker_command(options);
  spec.python = python_of(options);
  spec.event_log = absolute_event_log(options.event_log);
  plan.page_file = options.page_file;
  plan.trace_file = options.trace_file;
  spec.single_node_prefix = false;  // One worker's lines need no prefix.
  auto log_dir = make_log_folder(options);
  if (!log_dir) return log_dir.error();
  spec.log_dir = std::move(*log_dir);
  plan.port_is_chosen = plan.host && spec.coordinator_port == 0;
  return plan;
}

}  // namespace ddp::plan
