#include "launcher/node/dry_run.h"

#include <cstdio>
#include <memory>
#include <utility>

#include <asio/io_context.hpp>
#include <fmt/ranges.h>

#include "common/base/exit_codes.h"
#include "launcher/node/agent_process.h"

namespace ddp::node {
namespace {

std::string describe_rendezvous(const plan::JobPlan& plan) {
  if (plan.etcd) {
    return fmt::format("whoever is elected through etcd at {}",
                       fmt::join(flags::etcd_urls(*plan.etcd), ", "));
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

std::string describe_plan(const plan::JobPlan& plan) {
  const config::JobSpec& spec = plan.spec;
  return describe_job(plan) +
         fact("this node",
              fmt::format("{}{}{}", spec.host,
                          spec.node_rank < 0 ? "" : fmt::format(", node rank {}", spec.node_rank),
                          spec.local_addr.empty() ? "" : ", address " + spec.local_addr)) +
         describe_log_dir(spec) + fact("workers", std::to_string(spec.nproc));
}

}  // namespace

std::string fact(std::string_view name, std::string_view value) {
  return fmt::format("{:<12}{}\n", name, value);
}

std::string describe_log_dir(const config::JobSpec& spec) {
  return fact("log files", spec.log_dir.empty() ? "none" : spec.log_dir);
}

std::string describe_job(const plan::JobPlan& plan) {
  const config::JobSpec& spec = plan.spec;
  return "ddp-run would start this; --dry-run starts nothing\n" + fact("job", spec.job_id) +
         fact("nodes", spec.rules.min_nodes == spec.rules.max_nodes
                           ? std::to_string(spec.rules.min_nodes)
                           : fmt::format("{} to {}", spec.rules.min_nodes, spec.rules.max_nodes)) +
         fact("rendezvous", describe_rendezvous(plan)) +
         fact("restarts", fmt::format("up to {}", spec.rules.max_restarts)) +
         (plan.scheduler.empty() ? "" : fact("scheduler", plan.scheduler));
}

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

int dry_run(plan::JobPlan plan) {
  std::fputs(describe_plan(plan).c_str(), stdout);
  return describe_workers(std::move(plan.spec));
}

}  // namespace ddp::node
