#include "launcher/ddp_run/dry_run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include <asio/io_context.hpp>
#include <fmt/ranges.h>

#include "common/base/exit_codes.h"
#include "common/base/shell_words.h"
#include "common/config/rdzv_token.h"
#include "launcher/ddp_run/agent_process.h"
#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/step_run.h"
#include "launcher/hosts/launcher.h"

namespace ddp::run {
namespace {

std::string describe_rendezvous(const JobPlan& plan) {
  if (plan.etcd) {
    std::string urls;
    for (const std::string& url : etcd_urls(*plan.etcd)) urls += (urls.empty() ? "" : ", ") + url;
    return "whoever is elected through etcd at " + urls;
  }
  const std::string& host = plan.spec.coordinator_host;
  const bool ipv6 = host.find(':') != std::string::npos;
  const std::string place =
      fmt::format("{}{}{}, port {}", ipv6 ? "[" : "", host, ipv6 ? "]" : "",
                  plan.spec.coordinator_port == 0 ? "chosen by the system"
                                                  : std::to_string(plan.spec.coordinator_port));
  if (!plan.meeting_file.empty())
    return fmt::format("as the file {} says, or else run by this ddp-run: {}", plan.meeting_file,
                       place);
  return plan.host ? "run by this ddp-run, unless one answers there: " + place
                   : "looked for at " + place;
}

std::string line(std::string_view name, std::string_view value) {
  return fmt::format("{:<12}{}\n", name, value);
}

std::string describe_log_dir(const config::JobSpec& spec) {
  return line("log files", spec.log_dir.empty() ? "none" : spec.log_dir);
}

// Without the token, because people may show the output to others.
std::vector<std::pair<std::string, std::string>> shown_exports(const hosts::NodeOrder& order) {
  auto shown = order.environment;
  std::erase_if(shown, [](const auto& entry) { return entry.first == config::kTokenVariable; });
  return shown;
}

std::string describe_host(const HostsPlan& plan, const HostPart& part, const std::string& command) {
  const config::JobSpec& spec = part.plan.spec;
  std::string text = fmt::format("\nhost {}, {}\n", spec.host,
                                 spec.node_rank < 0 ? "a spare, which waits for a place"
                                                    : fmt::format("node rank {}", spec.node_rank));
  text += line("started by", command);
  text += line("folder", plan.order.folder);
  std::vector<std::string> exports;
  for (const auto& [name, value] : shown_exports(plan.order))
    exports.push_back(shell_quote(name + '=' + value));
  text +=
      line("environment",
           exports.empty() ? "its own" : fmt::format("its own and {}", fmt::join(exports, " ")));
  text += describe_log_dir(spec);
  text += line("workers", part.workers_known ? std::to_string(spec.nproc) : part.counted);
  text += line("command", shell_quote(spec.command));
  if (!part.numa_binding.empty()) text += line("CPUs", "bound by " + part.numa_binding);
  return text;
}

// Only the variables that are passed on are known; the host's own are not.
void leave_exports_only(const hosts::NodeOrder& order) {
  ::clearenv();
  for (const auto& [name, value] : shown_exports(order)) ::setenv(name.c_str(), value.c_str(), 1);
}

// The agent prints them, since it would make the workers' environment.
int describe_workers(config::JobSpec spec) {
  spec.dry_run = true;
  std::fflush(stdout);
  asio::io_context io(1);
  bool said = false;
  const auto agent = AgentProcess::start(io, agent_program(), spec, [&said](const AgentEnd& end) {
    said = end.how == "exit status 0";
  });
  if (!agent) {
    std::fprintf(stderr, "ddp-run: %s\n", agent.error().message.c_str());
    return kExitInternal;
  }
  io.run();
  return said ? kExitSuccess : kExitInternal;
}

}  // namespace

std::string describe_job(const JobPlan& plan) {
  const config::JobSpec& spec = plan.spec;
  return "ddp-run would start this; --dry-run starts nothing\n" + line("job", spec.job_id) +
         line("nodes", spec.rules.min_nodes == spec.rules.max_nodes
                           ? std::to_string(spec.rules.min_nodes)
                           : fmt::format("{} to {}", spec.rules.min_nodes, spec.rules.max_nodes)) +
         line("rendezvous", describe_rendezvous(plan)) +
         line("restarts", fmt::format("up to {}", spec.rules.max_restarts));
}

std::string describe_plan(const JobPlan& plan) {
  const config::JobSpec& spec = plan.spec;
  return describe_job(plan) +
         line("this node",
              fmt::format("{}{}{}", spec.host,
                          spec.node_rank < 0 ? "" : fmt::format(", node rank {}", spec.node_rank),
                          spec.local_addr.empty() ? "" : ", address " + spec.local_addr)) +
         describe_log_dir(spec) + line("workers", std::to_string(spec.nproc));
}

int dry_run(JobPlan plan) {
  std::fputs(describe_plan(plan).c_str(), stdout);
  return describe_workers(std::move(plan.spec));
}

int dry_run_hosts(const HostsPlan& plan, const Options& options) {
  const auto parts = plan_host_parts(plan);
  if (!parts) {
    std::fprintf(stderr, "ddp-run: %s\n", parts.error().message.c_str());
    return exit_code_of(parts.error());
  }
  JobPlan job = parts->front().plan;
  job.host = plan.job.host;
  std::fputs(describe_job(job).c_str(), stdout);
  const auto commands =
      hosts::launch_commands(plan.order.places, options.launch_agent, plan.order.program);
  const bool all_known = std::all_of(parts->begin(), parts->end(), [](const HostPart& part) {
    return part.workers_known || part.place.node_rank < 0;
  });
  leave_exports_only(plan.order);
  for (std::size_t i = 0; i < parts->size(); ++i) {
    const HostPart& part = (*parts)[i];
    std::fputs(describe_host(plan, part, commands[i]).c_str(), stdout);
    if (part.place.node_rank < 0) continue;
    if (!all_known) {
      std::puts("ranks and the workers' environment depend on how many workers the hosts count");
      continue;
    }
    if (const int status = describe_workers(part.plan.spec); status != kExitSuccess) return status;
  }
  return kExitSuccess;
}

}  // namespace ddp::run
