// How an agent finds the coordinator, and what it does while nobody answers.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "agent/core/agent_core.h"
#include "common/base/check.h"
#include "common/base/exit_codes.h"

namespace ddp::agent {
namespace {

constexpr Duration kFirstBackoff{50};
constexpr Duration kMaxBackoff{1'000};
// A connection that held this long says that the coordinator is well, so reconnecting starts at
// once.
constexpr Duration kSteadyConnection{1'000};
// How often a person is told that nobody answers.
constexpr Duration kNoticePeriod{30'000};
constexpr Duration kFirstNotice{1'000};

std::int64_t seconds(std::int64_t ms) { return (ms + 999) / 1'000; }

}  // namespace

std::string AgentCore::endpoint() const {
  const bool ipv6 = spec_.coordinator_host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", spec_.coordinator_host, ipv6 ? "]" : "",
                     spec_.coordinator_port);
}

std::vector<Action> AgentCore::start(TimePoint now) {
  now_ = now;
  settle();
  return take();
}

TimePoint AgentCore::connect_deadline() const {
  return connecting_since_ +
         Duration{was_joined_ ? spec_.coordinator_timeout_ms : spec_.join_timeout_ms};
}

void AgentCore::begin_connecting() {
  connecting_since_ = now_;
  next_notice_ = now_ + kFirstNotice;
  connect(backoff_);
}

void AgentCore::connect(Duration delay) {
  DDP_CHECK(phase_ == Phase::kIdle, "phase={}", static_cast<int>(phase_));
  link_ = Link::kConnecting;
  emit(Connect{delay});
}

void AgentCore::retry(const std::string& why) {
  last_error_ = why;
  if (connect_deadline() <= now_) return give_up();
  if (now_ >= next_notice_) {
    const auto left = std::chrono::duration_cast<Duration>(connect_deadline() - now_).count();
    emit(Print{fmt::format("the rendezvous {} does not answer ({}); trying for {} s more",
                           endpoint(), why, seconds(left))});
    next_notice_ = now_ + kNoticePeriod;
  }
  backoff_ = std::clamp(2 * backoff_, kFirstBackoff, kMaxBackoff);
  connect(backoff_);
}

void AgentCore::give_up() {
  if (was_joined_) {
    end(kExitCoordinatorLost,
        fmt::format("the rendezvous {} was lost and did not come back within {} s ({})", endpoint(),
                    seconds(spec_.coordinator_timeout_ms), last_error_),
        "");
  } else {
    end(kExitJoinTimeout,
        fmt::format("--rdzv-endpoint {}: nobody answers after {} s ({}); check that the node that "
                    "hosts the rendezvous is up and that host and port are right, or raise the "
                    "join timeout",
                    endpoint(), seconds(spec_.join_timeout_ms), last_error_),
        "");
  }
  exit_now();
}

std::vector<Action> AgentCore::on_connected(TimePoint now) {
  now_ = now;
  if (exited_ || link_ != Link::kConnecting) return take();
  link_ = Link::kJoining;
  last_error_ = "it accepts connections but does not answer";
  send(wire::Join{.job_id = spec_.job_id,
                  .node_id = spec_.node_id,
                  .host = spec_.host,
                  .address = spec_.local_addr,
                  .node_rank = spec_.node_rank,
                  .nproc = spec_.nproc,
                  .min_nodes = spec_.min_nodes,
                  .max_nodes = spec_.max_nodes,
                  .max_restarts = spec_.max_restarts,
                  .join_timeout_ms = spec_.join_timeout_ms,
                  .last_call_ms = spec_.last_call_ms,
                  .stop_timeout_ms = spec_.stop_timeout_ms,
                  .last_round = last_round_,
                  .restarts = restarts_});
  return take();
}

std::vector<Action> AgentCore::on_connect_failed(TimePoint now, const std::string& why) {
  now_ = now;
  if (exited_ || link_ != Link::kConnecting) return take();
  retry(why);
  return take();
}

std::vector<Action> AgentCore::on_disconnected(TimePoint now) {
  now_ = now;
  if (exited_ || link_ == Link::kClosed || link_ == Link::kConnecting) return take();
  const bool joined = link_ == Link::kJoined;
  link_ = Link::kClosed;
  // What the old connection ordered is void: the coordinator counts this node as lost.
  next_round_.reset();
  stop_owed_.reset();
  success_owed_ = false;
  if (!joined) {
    retry("it closed the connection");
    return take();
  }
  last_error_ = "the connection closed";
  if (now - joined_at_ >= kSteadyConnection) backoff_ = Duration{0};
  if (!ending_) emit(Print{fmt::format("the connection to the rendezvous {} is lost", endpoint())});
  stop_workers(SIGTERM, "the connection to the rendezvous is lost");
  return take();
}

}  // namespace ddp::agent
