#include "launcher/ddp_run/hosts_plan.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "common/config/rdzv_token.h"
#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/flags_access.h"
#include "launcher/hosts/launcher.h"

namespace ddp::run {
namespace {

constexpr const char* kLoopbackAddress = "127.0.0.1";
// What ddp-run itself reads, and means the job and not the machine.
constexpr std::array<const char*, 3> kOwnVariables{"PYTHON_EXEC", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
                                                   "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"};

// USER@HOST without the user.
std::string host_part(const std::string& name) {
  return name.substr(name.rfind('@') + 1);  // npos + 1 is 0.
}

bool is_this_machine(const std::string& name, const Machine& machine) {
  return name == "localhost" || name == machine.host_name;
}

std::vector<hosts::NodePlace> places(const Options& options) {
  std::vector<hosts::NodePlace> made;
  for (const hosts::Host& host : options.host_list) {
    const int rank = static_cast<int>(made.size());
    made.push_back({host.name, host.slots, rank < options.max_nodes ? rank : -1});
  }
  return made;
}

std::string numeric_endpoint(const std::string& address, int port) {
  const bool v6 = address.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", address, port) : fmt::format("{}:{}", address, port);
}

void plan_rendezvous(const Options& options, const Machine& machine, HostsPlan& plan) {
  JobPlan& job = plan.job;
  job.host = true;
  if (options.etcd) {
    job.host = false;
  } else if (options.endpoint) {
    const HostPlace place = machine.locate_host(options.endpoint->host);
    job.host = place.local && options.is_host.value_or(true);
    job.bind_address = place.loopback ? place.address : "";
    job.endpoint_flag = options.endpoint_flag;
    job.spec.coordinator_port = options.endpoint->port;
    plan.address = options.endpoint->host;
  } else {
    plan.address =
        options.local_addr.empty() ? address_for_hosts(options, machine) : options.local_addr;
    job.bind_address = plan.address == kLoopbackAddress ? kLoopbackAddress : "";
    job.endpoint_flag = "--hosts";
  }
  job.spec.coordinator_host = plan.address;
  plan.order.joins_ours = job.host;
}

}  // namespace

std::string address_for_hosts(const Options& options, const Machine& machine) {
  const auto& all = options.host_list;
  const auto other = std::find_if(all.begin(), all.end(), [&](const hosts::Host& host) {
    return !is_this_machine(host_part(host.name), machine);
  });
  if (other == all.end()) return kLoopbackAddress;
  // A question to the name service may take seconds where the name is none of its own, as those of
  // an ssh configuration or of pods are: one is asked.
  if (options.launch_agent.is_default()) {
    if (std::string address = machine.source_address(host_part(other->name)); !address.empty()) {
      return address;
    }
  }
  const HostPlace own = machine.locate_host(machine.host_name);
  return own.address.empty() || !own.local ? kLoopbackAddress : own.address;
}

Result<HostsPlan> plan_hosts(const Options& options, const Machine& machine,
                             const std::string& program, const std::string& folder) {
  HostsPlan plan;
  plan_rendezvous(options, machine, plan);
  hosts::NodeOrder& order = plan.order;
  order.mark = hosts::make_mark();
  order.program = program;
  order.folder = folder;
  order.launch_agent = options.launch_agent.text();
  order.start_limit_ms = options.join_timeout_ms;
  order.places = places(options);
  order.arguments = options.node_arguments;
  for (const char* name : kOwnVariables) {
    if (const char* value = std::getenv(name)) order.environment.emplace_back(name, value);
  }
  order.environment.insert(order.environment.end(), options.exports.begin(), options.exports.end());
  config::JobSpec& spec = plan.job.spec;
  // By which the rendezvous knows the hosts; it goes with the order, not in an argument.
  auto given = job_token(options);
  if (!given) return given.error();
  spec.rdzv_token = given->empty() ? config::make_token() : std::move(*given);
  order.environment.emplace_back(config::kTokenVariable, std::string(spec.rdzv_token.reveal()));
  // As random as the mark, and no part of what has to stay unknown.
  spec.job_id = options.job_id.value_or(hosts::make_mark().substr(9, 16));
  spec.min_nodes = options.min_nodes;
  spec.max_nodes = options.max_nodes;
  spec.host = machine.host_name;
  // The hosts take the same files, each its own of that name.
  spec.tls = options.tls;
  spec.tls_name = plan.address;
  return plan;
}

void set_endpoint(HostsPlan& plan) {
  const config::JobSpec& spec = plan.job.spec;
  std::vector<std::string> flags{fmt::format("--nnodes={}:{}", spec.min_nodes, spec.max_nodes)};
  if (!plan.address.empty()) {
    flags.push_back("--rdzv-endpoint=" + numeric_endpoint(plan.address, spec.coordinator_port));
    flags.push_back("--rdzv-id=" + spec.job_id);
  }
  plan.order.arguments.insert(plan.order.arguments.begin(), flags.begin(), flags.end());
}

std::vector<std::string> launch_lines(const HostsPlan& plan, const Options& options) {
  return hosts::launch_commands(plan.order.places, options.launch_agent, plan.order.program);
}

}  // namespace ddp::run
