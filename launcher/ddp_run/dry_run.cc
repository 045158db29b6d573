#include "launcher/ddp_run/dry_run.h"

#include <cstdio>
#include <memory>
#include <utility>

#include <asio/io_context.hpp>

#include "common/base/exit_codes.h"
#include "launcher/ddp_run/agent_process.h"

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
  return plan.host ? "run by this ddp-run, unless one answers there: " + place
                   : "looked for at " + place;
}

}  // namespace

std::string describe_plan(const JobPlan& plan) {
  const config::JobSpec& spec = plan.spec;
  std::string text = "ddp-run would start this; --dry-run starts nothing\n";
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("{:<12}{}\n", name, value);
  };
  line("job", spec.job_id);
  line("nodes", spec.min_nodes == spec.max_nodes
                    ? std::to_string(spec.min_nodes)
                    : fmt::format("{} to {}", spec.min_nodes, spec.max_nodes));
  line("rendezvous", describe_rendezvous(plan));
  line("restarts", fmt::format("up to {}", spec.max_restarts));
  line("this node",
       fmt::format("{}{}{}", spec.host,
                   spec.node_rank < 0 ? "" : fmt::format(", node rank {}", spec.node_rank),
                   spec.local_addr.empty() ? "" : ", address " + spec.local_addr));
  line("log files", spec.log_dir.empty() ? "none" : spec.log_dir);
  line("workers", std::to_string(spec.nproc));
  return text;
}

int dry_run(JobPlan plan) {
  plan.spec.dry_run = true;
  std::fputs(describe_plan(plan).c_str(), stdout);
  std::fflush(stdout);
  asio::io_context io(1);
  bool said = false;
  const auto agent =
      AgentProcess::start(io, agent_program(), plan.spec,
                          [&said](const AgentEnd& end) { said = end.how == "exit status 0"; });
  if (!agent) {
    std::fprintf(stderr, "ddp-run: %s\n", agent.error().message.c_str());
    return kExitInternal;
  }
  io.run();
  return said ? kExitSuccess : kExitInternal;
}

}  // namespace ddp::run
