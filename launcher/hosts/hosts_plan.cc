#include "launcher/hosts/hosts_plan.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "common/base/exit_error.h"
#include "common/base/host_port.h"
#include "common/base/random_hex.h"
#include "common/config/rdzv_token.h"
#include "launcher/flags/flags_access.h"
#include "launcher/hosts/launcher.h"
#include "launcher/machine/accelerators.h"

namespace ddp::hosts {
namespace {

constexpr const char* kLoopbackAddress = "127.0.0.1";
// Variables that ddp-run itself reads and that concern the job, not the machine.
constexpr auto kOwnVariables = std::to_array<const char*>(
    {"PYTHON_EXEC", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT",
     "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
     "LOGLEVEL"});

bool is_this_machine(const std::string& name, const machine::Machine& machine) {
  return name == "localhost" || machine::is_own_name(name, machine.host_name);
}

std::vector<NodePlace> places(const flags::Options& options) {
  std::vector<NodePlace> made;
  for (const Host& host : options.host_list) {
    const int rank = static_cast<int>(made.size());
    made.push_back({host.name, host.slots, rank < options.spec.rules.max_nodes ? rank : -1});
  }
  return made;
}

void plan_rendezvous(const flags::Options& options, const machine::Machine& machine,
                     HostsPlan& plan) {
  plan::JobPlan& job = plan.job;
  job.host = true;
  if (options.etcd) {
    job.host = false;
  } else if (options.endpoint) {
    const machine::HostPlace place = machine.locate_host(options.endpoint->host);
    job.host = place.local && options.is_host.value_or(true);
    job.bind_address = place.loopback ? place.address : "";
    job.endpoint_flag = options.endpoint_flag;
    job.spec.coordinator_port = options.endpoint->port;
    plan.address = options.endpoint->host;
  } else {
    plan.address = options.spec.local_addr.empty() ? address_for_hosts(options, machine)
                                                   : options.spec.local_addr;
    job.bind_address = plan.address == kLoopbackAddress ? kLoopbackAddress : "";
    job.endpoint_flag = "--hosts";
  }
  job.spec.coordinator_host = plan.address;
  job.scheduler = options.scheduler;
  plan.order.joins_ours = job.host;
}

// More devices than any host has.
constexpr int kDevicesMax = 1'024;

// Stands for a host that is not asked. Its devices are named by their numbers; nothing else is
// known.
machine::Machine unseen_machine(const std::string& name) {
  machine::Machine machine;
  machine.host_name = name;
  machine.usable_cores = [] { return 1; };
  machine.accelerators = [](std::string_view) { return 0; };
  machine.locate_host = [](const std::string& host) {
    return machine::HostPlace{false, false, host};
  };
  machine.cuda_device_names = [] {
    std::vector<std::string> names;
    for (int i = 0; i < kDevicesMax; ++i) names.push_back(std::to_string(i));
    return names;
  };
  return machine;
}

// Empty if the number of workers is known.
std::string what_is_counted(const flags::Options& options) {
  using Kind = flags::ProcessCount::Kind;
  const Kind kind = options.nproc.kind;
  if (kind == Kind::kNumber) return "";
  if (kind == Kind::kCpu) return "one for each CPU of the host";
  if (!options.devices.empty()) return "";
  if (kind == Kind::kAccelerator)
    return fmt::format("one for each {} of the host",
                       machine::find_accelerator(options.nproc.accelerator)->device);
  return kind == Kind::kAuto ? "one for each accelerator of the host, or CPU if it has none"
                             : "one for each accelerator of the host, or one if it has none";
}

// Plans a host's part from the flags and the order. `port_is_open`: the system will pick the port,
// and the flags hold a stand-in.
Result<HostPart> plan_host_part(const NodeOrder& order, const NodePlace& place, bool port_is_open) {
  const auto environment = [&order](const char* name) -> const char* {
    // The host ignores PET_NAME, and nothing here needs the secret.
    if (std::string_view(name) == config::kTokenVariable) return nullptr;
    if (std::string_view(name).starts_with("PET_")) return nullptr;
    for (const auto& [known, value] : order.environment)
      if (known == name) return value.c_str();
    return nullptr;
  };
  auto options = flags::parse_flags(order.arguments, environment);
  if (!options) return options.error();
  take_place(order, place, *options);
  options->spec.dry_run = true;
  HostPart part{.place = place, .plan = {}};
  part.counted = what_is_counted(*options);
  part.workers_known = part.counted.empty();
  if (!part.workers_known) options->nproc = {flags::ProcessCount::Kind::kNumber, 1};
  part.numa_binding = std::exchange(options->spec.numa_binding, "");
  auto plan = plan::plan_job(*options, unseen_machine(host_part(place.host)));
  if (!plan) return plan.error();
  part.plan = std::move(*plan);
  if (port_is_open) part.plan.spec.coordinator_port = 0;
  return part;
}

}  // namespace

std::string host_part(const std::string& name) {
  return name.substr(name.rfind('@') + 1);  // npos + 1 is 0.
}

int ending_signal(const std::vector<int>& signals, int wish) {
  if (signals.empty()) return SIGKILL;
  const bool is_handled = std::find(signals.begin(), signals.end(), wish) != signals.end();
  return is_handled ? wish : signals.front();
}

void take_place(const NodeOrder& order, const NodePlace& place, flags::Options& options) {
  if (place.slots > 0) options.nproc = {flags::ProcessCount::Kind::kNumber, place.slots};
  options.spec.node_rank = place.node_rank;
  options.spec.node_rank_is_wish = false;
  if (order.joins_ours) options.is_host = false;
  // If the endpoint is on one of the hosts, that host runs the rendezvous, whatever its rank.
  options.node_rank_is_schedulers = true;
}

std::string address_for_hosts(const flags::Options& options, const machine::Machine& machine) {
  bool all_are_here = true;
  for (const Host& host : options.host_list) {
    const std::string name = host_part(host.name);
    if (is_this_machine(name, machine)) continue;
    const std::string address =
        options.launch_agent.is_default() ? machine.source_address(name) : "";
    // One that is reached over loopback is this machine, by a name of /etc/hosts.
    if (is_loopback(address)) continue;
    if (!address.empty()) return address;
    // The name service may take seconds for names that it does not know (from an ssh configuration,
    // or of pods), so no other name is looked up.
    all_are_here = false;
    break;
  }
  if (all_are_here) return kLoopbackAddress;
  const machine::HostPlace own = machine.locate_host(machine.host_name);
  return own.address.empty() || !own.local ? kLoopbackAddress : own.address;
}

Result<HostsPlan> plan_hosts(const flags::Options& options, const machine::Machine& machine,
                             const std::string& program, const std::string& folder) {
  HostsPlan plan;
  plan_rendezvous(options, machine, plan);
  NodeOrder& order = plan.order;
  order.mark = make_mark();
  order.program = program;
  order.folder = folder;
  order.launch_agent = options.launch_agent.text();
  order.start_limit_ms = options.spec.rules.join_timeout_ms;
  order.places = places(options);
  order.arguments = options.node_arguments;
  for (const char* name : kOwnVariables) {
    if (const char* value = std::getenv(name)) order.environment.emplace_back(name, value);
  }
  order.environment.insert(order.environment.end(), options.exports.begin(), options.exports.end());
  config::JobSpec& spec = plan.job.spec;
  // The secret by which the rendezvous knows the hosts. It travels in the order, never as an
  // argument.
  auto given = flags::job_token(options);
  if (!given) return given.error();
  spec.rdzv_token = given->empty() ? config::make_token() : std::move(*given);
  order.environment.emplace_back(config::kTokenVariable, std::string(spec.rdzv_token.reveal()));
  spec.job_id = options.job_id.value_or(random_hex(8));
  spec.rules.min_nodes = options.spec.rules.min_nodes;
  spec.rules.max_nodes = options.spec.rules.max_nodes;
  spec.host = machine.host_name;
  spec.signals = options.spec.signals;
  spec.checkpoint_signal = options.spec.checkpoint_signal;
  order.checkpoint_signal = spec.checkpoint_signal;
  plan.job.page_file = options.page_file;
  plan.job.trace_file = options.trace_file;
  // Each host reads its own file of the same name.
  spec.tls = options.tls;
  spec.tls_name = plan.address;
  return plan;
}

void set_endpoint(HostsPlan& plan) {
  const config::JobSpec& spec = plan.job.spec;
  std::vector<std::string> flags{
      fmt::format("--nnodes={}:{}", spec.rules.min_nodes, spec.rules.max_nodes)};
  if (!plan.address.empty()) {
    flags.push_back("--rdzv-endpoint=" + host_and_port(plan.address, spec.coordinator_port));
    flags.push_back("--rdzv-id=" + spec.job_id);
  }
  plan.order.arguments.insert(plan.order.arguments.begin(), flags.begin(), flags.end());
}

Result<std::vector<HostPart>> plan_host_parts(const HostsPlan& plan) {
  HostsPlan told = plan;
  int& port = told.job.spec.coordinator_port;
  const bool port_is_open = port == 0;
  if (port_is_open) port = 1;  // A flag with 0 would be refused.
  set_endpoint(told);
  std::vector<HostPart> parts;
  std::vector<int> workers;
  for (const NodePlace& place : told.order.places) {
    auto part = plan_host_part(told.order, place, port_is_open);
    if (!part) return part.error();
    if (place.node_rank >= 0) workers.push_back(part->plan.spec.nproc);
    parts.push_back(std::move(*part));
  }
  for (HostPart& part : parts) part.plan.spec.dry_run_workers = workers;
  return parts;
}

}  // namespace ddp::hosts
