// How an agent finds the coordinator, and what it does while nobody answers.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "agent/core/agent_core.h"
#include "common/base/check.h"
#include "common/base/exit_codes.h"
#include "common/base/host_port.h"
#include "common/base/release.h"

namespace ddp::agent {
namespace {

constexpr Duration kFirstBackoff{50};
constexpr Duration kMaxBackoff{1'000};
// A connection that lasted this long shows that the coordinator is well, so reconnecting starts at
// once.
constexpr Duration kSteadyConnection{1'000};
// How often to print that nobody answers.
constexpr Duration kSearchPeriod{30'000};
constexpr Duration kFirstNotice{1'000};

std::int64_t seconds(std::int64_t ms) { return (ms + 999) / 1'000; }

// The ddp-run of a job of one node hosts the rendezvous itself, so an endpoint elsewhere that does
// not answer most likely means that the job should have had several nodes.
std::string hint_of_nnodes(const config::JobSpec& spec) {
  if (spec.rules.max_nodes > 1 || is_loopback(spec.coordinator_host)) return "";
  return "; --nnodes is 1, the default: a job of several nodes needs --nnodes on each of them";
}

}  // namespace

std::string AgentCore::endpoint() const {
  return host_and_port(coordinator_.host, coordinator_.port);
}

std::vector<Action> AgentCore::start(TimePoint now) {
  now_ = now;
  if (exited_) return take();
  settle();
  return take();
}

TimePoint AgentCore::connect_deadline() const {
  return search_.since +
         Duration{was_joined_ ? spec_.coordinator_timeout_ms : spec_.rules.join_timeout_ms};
}

// An agent that is about to exit does not look for the coordinator.
bool AgentCore::is_connecting() const {
  return !ending_ && (link_ == Link::kConnecting || link_ == Link::kJoining);
}

void AgentCore::begin_connecting() {
  search_ = {.since = now_, .next_notice = now_ + kFirstNotice};
  connect(backoff_);
}

void AgentCore::connect(Duration delay) {
  DDP_CHECK(!ending_, "status={}", ending_->exit_code);
  link_ = Link::kConnecting;
  emit(Connect{delay});
}

void AgentCore::retry(const std::string& why) {
  last_error_ = why;
  if (connect_deadline() <= now_) return give_up();
  if (now_ >= search_.next_notice) {
    const auto left = std::chrono::duration_cast<Duration>(connect_deadline() - now_).count();
    emit(Print{fmt::format("the rendezvous {} does not answer ({}); trying for {} s more{}",
                           endpoint(), why, seconds(left),
                           was_joined_ ? "" : hint_of_nnodes(spec_))});
    search_.next_notice = now_ + kSearchPeriod;
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
        fmt::format("--rdzv-endpoint {}: no rendezvous answers within {} s{}; check that the node "
                    "that hosts it is up, that host and port are right, that the port is no other "
                    "program's and that no firewall closes it, or raise --join-timeout{}",
                    endpoint(), seconds(spec_.rules.join_timeout_ms),
                    last_error_.empty() ? "" : fmt::format(" ({})", last_error_),
                    hint_of_nnodes(spec_)),
        "");
  }
  stop_workers(SIGTERM, ending_->summary);
}

wire::Join AgentCore::join_message() const {
  wire::Join join{.job_id = spec_.job_id,
                  .node_id = spec_.node_id,
                  .host = spec_.host,
                  .address = spec_.local_addr,
                  .node_rank = spec_.node_rank,
                  .node_rank_is_wish = spec_.node_rank_is_wish,
                  .program = spec_.program,
                  .nproc = spec_.nproc,
                  .role = spec_.role,
                  .rules = spec_.rules,
                  .last_round = last_round_,
                  .restarts = restarts_,
                  .was_joined = was_joined_,
                  .replica_port = spec_.replica_port,
                  .unfit = spec_.unfit,
                  .release = std::string(release())};
  if (holds_round()) {
    join.running_round = round_.start.round;
    join.group_rank = round_.start.group_rank;
    join.members = round_.start.members;
  }
  return join;
}

// Whether this node's last round still goes on: it runs, or it has succeeded here and nobody has
// ended it.
bool AgentCore::holds_round() const {
  return !ending_ && (phase_ == Phase::kRunning || round_.success != Success::kNone);
}

// Reports what happened while there was no connection, or was said on one that was lost.
void AgentCore::send_what_waited() {
  if (!holds_round()) return;
  if (phase_ == Phase::kRunning) {
    if (round_.step >= 0) send(heartbeat());
    for (const Seen& seen : round_.failures) send_failure(seen);
  } else if (phase_ == Phase::kIdle) {
    tell_success();
  }
}

std::vector<Action> AgentCore::on_connected(TimePoint now) {
  now_ = now;
  if (exited_ || link_ != Link::kConnecting) return take();
  if (ending_) {
    link_ = Link::kClosed;
    emit(Disconnect{});
    return take();
  }
  link_ = Link::kJoining;
  last_error_ = "it accepts connections but does not answer";
  send(join_message());
  return take();
}

std::vector<Action> AgentCore::on_connect_failed(TimePoint now, const std::string& why) {
  now_ = now;
  if (exited_ || link_ != Link::kConnecting) return take();
  if (ending_) {
    link_ = Link::kClosed;
    return take();
  }
  retry(why);
  return take();
}

// A node that has joined before keeps looking: a stranger on the lost coordinator's port must not
// end the job. A new node gives up at once.
std::vector<Action> AgentCore::on_connect_refused(TimePoint now, const std::string& why) {
  if (was_joined_ || ending_ || exited_ || link_ != Link::kConnecting) {
    return on_connect_failed(now, why);
  }
  now_ = now;
  end(kExitRefused, fmt::format("the rendezvous {}", why), "");
  stop_workers(SIGTERM, ending_->summary);
  return take();
}

std::vector<Action> AgentCore::on_disconnected(TimePoint now) {
  now_ = now;
  if (exited_ || link_ == Link::kClosed || link_ == Link::kConnecting) return take();
  const bool joined = link_ == Link::kJoined;
  link_ = Link::kClosed;
  if (!joined) {
    if (!ending_) retry("it closed the connection");
    return take();
  }
  // Orders of the old connection are void. The next one brings new orders.
  orders_ = {};
  round_.commit.reset();
  last_error_ = "the connection closed";
  if (now - joined_.since >= kSteadyConnection) backoff_ = Duration{0};
  if (!ending_) {
    emit(Print{fmt::format("the connection to the rendezvous {} is lost{}", joined_.at,
                           phase_ == Phase::kRunning ? "; the workers go on" : "")});
  }
  if (phase_ == Phase::kRunning) {
    begin_connecting();
  } else if (phase_ == Phase::kIdle) {
    settle();
  }
  return take();
}

}  // namespace ddp::agent
