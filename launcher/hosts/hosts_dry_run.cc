#include "launcher/hosts/hosts_dry_run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "common/base/exit_error.h"
#include "common/base/shell_words.h"
#include "common/config/rdzv_token.h"
#include "launcher/hosts/launcher.h"
#include "launcher/node/dry_run.h"

namespace ddp::hosts {
namespace {

using node::fact;

// Without the token, because people may show the output to others.
std::vector<std::pair<std::string, std::string>> shown_exports(const NodeOrder& order) {
  auto shown = order.environment;
  std::erase_if(shown, [](const auto& entry) { return entry.first == config::kTokenVariable; });
  return shown;
}

std::string describe_host(const HostsPlan& plan, const HostPart& part, const std::string& command) {
  const config::JobSpec& spec = part.plan.spec;
  std::string text = fmt::format("\nhost {}, {}\n", spec.host,
                                 spec.node_rank < 0 ? "a spare, which waits for a place"
                                                    : fmt::format("node rank {}", spec.node_rank));
  text += fact("started by", command);
  text += fact("folder", plan.order.folder);
  std::string exports;
  for (const auto& [name, value] : shown_exports(plan.order))
    exports += ' ' + shell_quote(name + '=' + value);
  text += fact("environment", exports.empty() ? "its own" : "its own and" + exports);
  text += node::describe_log_dir(spec);
  text += fact("workers", part.workers_known ? std::to_string(spec.nproc) : part.counted);
  text += fact("command", shell_quote(spec.command));
  if (!part.numa_binding.empty()) text += fact("CPUs", "bound by " + part.numa_binding);
  return text;
}

// Only the variables that are passed on are known; the host's own are not.
void leave_exports_only(const NodeOrder& order) {
  ::clearenv();
  for (const auto& [name, value] : shown_exports(order)) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace

int dry_run_hosts(const HostsPlan& plan, const flags::Options& options) {
  const auto parts = plan_host_parts(plan);
  if (!parts) {
    std::fprintf(stderr, "ddp-run: %s\n", parts.error().message.c_str());
    return exit_code_of(parts.error());
  }
  plan::JobPlan job = parts->front().plan;
  job.host = plan.job.host;
  job.scheduler = plan.job.scheduler;
  std::fputs(node::describe_job(job).c_str(), stdout);
  const auto commands =
      launch_commands(plan.order.places, options.launch_agent, plan.order.program);
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
    if (const int status = node::describe_workers(part.plan.spec); status != kExitSuccess)
      return status;
  }
  return kExitSuccess;
}

}  // namespace ddp::hosts
