#include "launcher/check/check_command.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "common/base/exit_codes.h"
#include "common/base/exit_error.h"
#include "common/process/this_process.h"
#include "launcher/check/check_node.h"
#include "launcher/check/local_probe.h"
#include "launcher/check/verdict/verdict.h"

namespace ddp::check {
namespace {

constexpr const char* kCommand = "check";
constexpr const char* kJson = "--json";
constexpr const char* kHelp =
    "ddp-run check [FLAG...] [--json]\n\nLooks for what breaks jobs, and starts none. The flags "
    "are "
    "those of the job; type the line on each node, or use\nsrun or --hosts. Without an endpoint, "
    "it "
    "looks at this machine only: memory, limits, the own name, GPUs, and with\n--check-dir DIR a "
    "checkpoint folder. With several nodes, also at ports, names, clocks, latency and bandwidth "
    "between\nthem. The node with rank 0 prints one table, or one JSON object with --json. A "
    "program "
    "called check is started by\nddp-run ./check.\nExamples: ddp-run check --check-dir "
    "/shared/run1\n"
    "          ddp-run check --nnodes 4 --rdzv-endpoint node0:29400\n\nExit status: 0 all is well, "
    "77 a node is not fit, others as ddp-run.\n";

}  // namespace

std::variant<std::vector<std::string>, int> job_line(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != kCommand) return arguments;
  std::vector<std::string> line(arguments.begin() + 1, arguments.end());
  const auto has = [&](const char* word) {
    return std::find(line.begin(), line.end(), word) != line.end();
  };
  if (has("--help") || has("-h")) {
    std::fputs(kHelp, stdout);
    return kExitSuccess;
  }
  const bool json = has(kJson);
  std::erase(line, kJson);
  // One table, as it is.
  line.insert(line.end(), {"--no-log-prefix", "--no-status-line", "--no-python", own_executable(),
                           kNodeCommand});
  if (json) line.emplace_back(kJson);
  return line;
}

Result<void> mark_check(flags::Options& options) {
  const auto& arguments = options.arguments;
  if (options.spec.program == own_executable()) {
    options.is_check = !arguments.empty() && arguments.front() == kNodeCommand;
    return {};
  }
  const auto word = std::find(arguments.begin(), arguments.end(), kNodeCommand);
  if (word == arguments.begin() || word == arguments.end() || *(word - 1) != own_executable())
    return {};
  return exit_error(kExitUsage,
                    "check starts no program, and {} is none of its flags; leave it out",
                    options.spec.program);
}

void plan_check(const flags::Options& options, plan::JobPlan& plan) {
  if (!options.is_check) return;
  // The workers meet in ddp-run's own store.
  plan.spec.own_store = false;
  auto& command = plan.spec.command;
  if (!options.check_dir.empty()) command.insert(command.end(), {"--check-dir", options.check_dir});
  if (!plan.spec.local_addr.empty())
    command.insert(command.end(), {"--address", plan.spec.local_addr});
}

void check_health(const flags::Options& options, plan::JobPlan& plan) {
  if (!options.health_check || options.is_check) return;
  const config::JobSpec& spec = plan.spec;
  const LocalFacts facts = probe_node({.host = spec.host,
                                       .workers = spec.nproc,
                                       .world_size = spec.nproc * spec.rules.max_nodes,
                                       .nodes = spec.rules.max_nodes,
                                       .check_dir = options.check_dir});
  const std::vector<Verdict> verdicts = judge_node(std::max(spec.node_rank, 0), facts);
  plan.spec.unfit = what_failed(verdicts);
  if (is_fit(verdicts)) return;
  std::fprintf(stderr, "ddp-run: this node is not fit for the job:\n%s", table(verdicts).c_str());
}

}  // namespace ddp::check
