#include "launcher/slurm/step_rendezvous.h"

#include <poll.h>

#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/exit_error.h"
#include "common/store/socket.h"
#include "launcher/hosting/daemon_page.h"
#include "launcher/node/notices.h"
#include "launcher/slurm/scontrol.h"
#include "launcher/slurm/step_token.h"

namespace ddp::slurm {
namespace {

constexpr int kPauseMs = 50;
constexpr Duration kNoticePeriod{10'000};

// Called once the job's own daemon is found.
Result<void> take_token_from(plan::JobPlan& plan) {
  if (plan::is_guarded(plan.spec)) return {};
  const auto sealed =
      hosting::ask_daemon("/token", plan.spec.coordinator_host, plan.spec.coordinator_port);
  if (!sealed) {
    return exit_error(kExitRefused, "{}: the first node did not show the job's secret: {}",
                      plan.endpoint_flag, sealed.error().message);
  }
  return take_step_token(plan, *sealed);
}

}  // namespace

Result<void> find_step_rendezvous(plan::JobPlan& plan) {
  std::string& host = plan.spec.coordinator_host;
  const std::string node = host;
  const TimePoint start = Clock::now();
  TimePoint notice = start + kNoticePeriod;
  std::string last;
  bool asked = false;
  while (Clock::now() - start < Duration(plan.spec.rules.join_timeout_ms)) {
    for (const int port : plan.step_ports) {
      const auto job = hosting::ask_daemon("/job", host, port);
      if (job && *job == plan.spec.job_id) {
        plan.spec.coordinator_port = port;
        return take_token_from(plan);
      }
      if (!job) last = job.error().message;
      if (job || job.error().code != Errc::kNotFound) continue;
      if (!asked) {
        asked = true;
        const std::string address = ask_node_address(node);
        if (!address.empty()) host = address;
      }
      break;  // The name has no address, so the other ports need not be tried.
    }
    if (Clock::now() >= notice) {
      notice = Clock::now() + kNoticePeriod;
      node::print_notice(fmt::format("{}: waiting for ddp-run on the first node, {} ({})",
                                     plan.endpoint_flag, node, last));
    }
    ::poll(nullptr, 0, kPauseMs);
  }
  return exit_error(
      kExitJoinTimeout,
      "{}: ddp-run on the first node, {} (ports {}), did not answer within {} s (--join-timeout): "
      "{}; if the nodes reach each other at other addresses, name one with --rdzv-endpoint",
      plan.endpoint_flag, node, fmt::join(plan.step_ports, ", "),
      plan.spec.rules.join_timeout_ms / 1'000, last);
}

void wait_for_end_of_rendezvous(const plan::JobPlan& plan, Duration limit) {
  const TimePoint deadline = Clock::now() + limit;
  while (Clock::now() < deadline &&
         store::Socket::connect(plan.spec.coordinator_host, plan.spec.coordinator_port, deadline)) {
    ::poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace ddp::slurm
