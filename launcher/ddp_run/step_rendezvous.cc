#include "launcher/ddp_run/step_rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/store/socket.h"
#include "launcher/ddp_run/exit_error.h"
#include "launcher/ddp_run/notices.h"
#include "launcher/ddp_run/step_token.h"
#include "launcher/slurm/scontrol.h"

namespace ddp::run {
namespace {

constexpr Duration kAnswerLimit{1'000};
constexpr int kPauseMs = 50;
constexpr Duration kNoticePeriod{10'000};
constexpr std::size_t kMaxHead = 4'096;

// The number behind "Content-Length: " in an answer's head.
std::size_t content_length(std::string_view head) {
  constexpr std::string_view kName = "Content-Length: ";
  const std::size_t at = head.find(kName);
  std::size_t length = 0;
  if (at != std::string_view::npos)
    std::from_chars(head.data() + at + kName.size(), head.data() + head.size(), length);
  return std::min(length, kMaxHead);
}

// A page of the daemon at this port, which is a line; none: it has no such page.
Result<std::optional<std::string>> ask_for(const std::string& path, const std::string& host,
                                           int port) {
  const TimePoint deadline = Clock::now() + kAnswerLimit;
  auto socket = Socket::connect(host, port, deadline);
  if (!socket) return socket.error();
  const auto sent = socket->write_all(
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, host_and_port(host, port)),
      deadline);
  if (!sent) return sent.error();
  std::string head;
  while (!head.ends_with("\r\n\r\n") && head.size() < kMaxHead) {
    auto next = socket->read_exactly(1, deadline);
    if (!next) return next.error();
    head += *next;
  }
  if (head.starts_with("HTTP/1.1 404 ")) return std::optional<std::string>();
  if (!head.starts_with("HTTP/1.1 200 "))
    return make_error(Errc::kProtocol, "port {} is another program's", port);
  auto body = socket->read_exactly(content_length(head), deadline);
  if (!body) return body.error();
  while (body->ends_with('\n')) body->pop_back();
  return std::optional<std::string>(std::move(*body));
}

// The job's own daemon has been found.
Result<void> take_token_from(JobPlan& plan) {
  if (is_guarded(plan.spec)) return {};
  const auto sealed = ask_for("/token", plan.spec.coordinator_host, plan.spec.coordinator_port);
  if (!sealed) {
    return exit_error(kExitRefused, "{}: its first node did not show the job's secret: {}",
                      plan.endpoint_flag, sealed.error().message);
  }
  return take_step_token(plan, *sealed);
}

}  // namespace

Result<void> find_step_rendezvous(JobPlan& plan) {
  std::string& host = plan.spec.coordinator_host;
  const std::string node = host;
  const TimePoint start = Clock::now();
  TimePoint notice = start + kNoticePeriod;
  std::string last;
  bool asked = false;
  while (Clock::now() - start < Duration(plan.spec.join_timeout_ms)) {
    for (const int port : plan.step_ports) {
      const auto job = ask_for("/job", host, port);
      if (job && *job == plan.spec.job_id) {
        plan.spec.coordinator_port = port;
        return take_token_from(plan);
      }
      if (!job) last = job.error().message;
      if (job || job.error().code != Errc::kNotFound) continue;
      if (!asked) {
        asked = true;
        const std::string address = slurm::ask_node_address(node);
        if (!address.empty()) host = address;
      }
      break;  // Its other ports have no address either.
    }
    if (Clock::now() >= notice) {
      notice = Clock::now() + kNoticePeriod;
      print_notice(fmt::format("{}: waiting for ddp-run on its first node, {} ({})",
                               plan.endpoint_flag, node, last));
    }
    ::poll(nullptr, 0, kPauseMs);
  }
  return exit_error(kExitJoinTimeout,
                    "{}: ddp-run on its first node, {} (ports {}), did not answer within {} s "
                    "(--join-timeout): {}; if the nodes reach each other by other addresses, name "
                    "one with --rdzv-endpoint",
                    plan.endpoint_flag, node, fmt::join(plan.step_ports, ", "),
                    plan.spec.join_timeout_ms / 1'000, last);
}

void wait_for_end_of_rendezvous(const JobPlan& plan, Duration limit) {
  const TimePoint deadline = Clock::now() + limit;
  while (Clock::now() < deadline &&
         Socket::connect(plan.spec.coordinator_host, plan.spec.coordinator_port, deadline)) {
    ::poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace ddp::run
