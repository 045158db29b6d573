#include "launcher/hosts/started_node.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/base/exit_codes.h"
#include "launcher/hosts/branch.h"
#include "launcher/hosts/hosts_plan.h"

namespace ddp::hosts {
namespace {

int give_up(const Error& error) {
  std::fprintf(stderr, "ddp-run: %s\n", error.message.c_str());
  return kExitInvalidValue;
}

// Undoes ignored and blocked signals, which this process may have inherited from what started it
// (sshd, kubectl).
void reset_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    ::signal(signal, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
}

}  // namespace

std::variant<std::unique_ptr<StartedNode>, int> StartedNode::start() {
  reset_signals();
  auto link = ParentLink::open();
  if (!link) return give_up(link.error());
  if (const auto taken = take_surroundings((*link)->order()); !taken) {
    return give_up(taken.error());
  }
  if ((*link)->order().places.size() > 1) return run_branch(**link);
  NodeReport reached;
  reached.host = (*link)->host();
  (*link)->report(reached);
  return std::unique_ptr<StartedNode>(new StartedNode(std::move(*link)));
}

const char* StartedNode::environment(const char* name) {
  const std::string_view text(name);
  if (text.starts_with("PET_") || text.starts_with("SLURM_")) return nullptr;
  return std::getenv(name);
}

void StartedNode::complete(flags::Options& options) const {
  take_place(link_->order(), link_->order().places.front(), options);
}

void StartedNode::complete(plan::JobPlan& plan) {
  hang_up_ = ending_signal(plan.spec.signals, SIGHUP);
  plan.spec.host = host_part(link_->host());
  plan.spec.tells_waiting = false;  // The launcher says it for all nodes.
  plan.spec.output.whole_lines = true;
}

void StartedNode::watch(asio::io_context& io) {
  link_->watch(io, {.on_signal = [](int signal) { ::kill(::getpid(), signal); },
                    .on_hang_up = [this] { ::kill(::getpid(), hang_up_); }});
}

void StartedNode::tell_end(int exit_code, const std::string& summary, const std::string& report,
                           const std::string& error) const {
  link_->report({.kind = NodeReport::Kind::kEnded,
                 .host = link_->host(),
                 .exit_code = exit_code,
                 .summary = summary,
                 .report = report,
                 .error = error});
}

}  // namespace ddp::hosts
