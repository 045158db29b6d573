#include "agent/core/agent_core.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/exit_codes.h"
#include "common/base/signal_name.h"

namespace ddp::agent {
namespace {

// How often a person is told which nodes are missing although that is no news.
constexpr Duration kNoticePeriod{30'000};
// SIGKILL is repeated: a process may have forked between two looks at the process table.
constexpr Duration kKillRepeat{1'000};

bool same_members(const wire::Waiting& a, const wire::Waiting& b) {
  return a.have == b.have && a.min_nodes == b.min_nodes && a.max_nodes == b.max_nodes &&
         a.hosts == b.hosts;
}

}  // namespace

AgentCore::AgentCore(config::JobSpec spec, Round last_round, int restarts)
    : spec_(std::move(spec)), last_round_(last_round), restarts_(restarts) {}

std::vector<Action> AgentCore::take() { return std::exchange(actions_, {}); }

// ---- what the coordinator says ----

std::vector<Action> AgentCore::on_message(TimePoint now, const wire::CoordinatorMessage& message) {
  now_ = now;
  if (exited_ || (link_ != Link::kJoining && link_ != Link::kJoined)) return take();
  std::visit([this](const auto& m) { handle(m); }, message);
  return take();
}

void AgentCore::handle(const wire::Welcome& message) {
  link_ = Link::kJoined;
  was_joined_ = true;
  joined_at_ = now_;
  heartbeat_ = Duration{std::max<std::int64_t>(message.heartbeat_ms, 1)};
  next_heartbeat_ = now_ + heartbeat_;
  waiting_ = {};
}

void AgentCore::handle(const wire::Waiting& message) {
  if (ending_) return;
  if (same_members(waiting_, message) && now_ < waiting_printed_ + kNoticePeriod) return;
  waiting_ = message;
  waiting_printed_ = now_;
  emit(Print{message.text});
}

void AgentCore::handle(const wire::RoundStart& message) {
  if (ending_ || message.round <= last_round_) return;
  const auto members = static_cast<std::int64_t>(message.members.size());
  if (message.group_rank < 0 || message.group_rank >= members) {
    emit(Print{fmt::format("the rendezvous sent round {} with group rank {} of {} members; ignored",
                           message.round, message.group_rank, members)});
    return;
  }
  last_round_ = message.round;
  restarts_ = message.restarts;
  if (phase_ == Phase::kIdle) return begin_round(message);
  next_round_ = message;
  stop_owed_.reset();
  success_owed_ = false;
  stop_workers(SIGTERM, fmt::format("round {} begins", message.round));
}

void AgentCore::handle(const wire::Stop& message) {
  if (ending_ || message.round != last_round_) return;
  next_round_.reset();
  stop_owed_ = message.round;
  stop_workers(SIGTERM, message.reason);
}

void AgentCore::handle(const wire::Finish& message) {
  if (ending_) return;
  end(message.exit_code, message.summary, message.report);
  stop_workers(SIGTERM, "the job is over: " + message.summary);
}

void AgentCore::handle(const wire::Refused& message) {
  if (ending_) return;
  end(kExitRefused,
      fmt::format("the rendezvous {} refuses this node: {}", endpoint(), message.message), "");
  stop_workers(SIGTERM, "the rendezvous refuses this node");
}

// ---- the workers of a round ----

void AgentCore::begin_round(const wire::RoundStart& message) {
  round_ = message;
  phase_ = Phase::kRunning;
  live_.clear();
  for (int local_rank = 0; local_rank < spec_.nproc; ++local_rank) live_.insert(local_rank);
  late_failures_.clear();
  operations_.clear();
  failed_ = false;
  step_ = -1;
  waiting_ = {};
  emit(SpawnWorkers{message});
}

// Whatever the phase, afterwards the workers are ending or have ended, and settle() runs when the
// round is cleared (at once where there is nothing to clear).
void AgentCore::stop_workers(int signal, const std::string& reason) {
  if (phase_ == Phase::kIdle) {
    settle();
  } else if (phase_ == Phase::kRunning && live_.empty()) {
    clear_round();
  } else if (phase_ == Phase::kRunning) {
    phase_ = Phase::kStopping;
    stop_signal_ = signal;
    kill_at_ = now_ + Duration{spec_.stop_timeout_ms};
    emit(SignalWorkers{signal, reason});
  }
}

wire::Failure AgentCore::failure_of(int local_rank) const {
  const auto group_rank = static_cast<std::size_t>(round_.group_rank);
  wire::Failure failure;
  failure.node_id = spec_.node_id;
  failure.host = spec_.host;
  failure.group_rank = round_.group_rank;
  failure.rank = round_.members[group_rank].first_rank + local_rank;
  failure.local_rank = local_rank;
  return failure;
}

void AgentCore::report(wire::Failure failure) {
  if (phase_ == Phase::kStopping) {
    late_failures_.push_back(std::move(failure));
  } else {
    failed_ = true;
    send(wire::WorkerFailed{round_.round, std::move(failure)});
  }
}

void AgentCore::worker_gone(int local_rank) {
  live_.erase(local_rank);
  if (!live_.empty()) return;
  if (phase_ == Phase::kStopping) {
    clear_round();
  } else if (!failed_) {
    success_owed_ = true;
    clear_round();
  }
  // Otherwise the round failed here: the failures are reported, and Stop comes.
}

std::vector<Action> AgentCore::on_spawn_failed(TimePoint now, int local_rank, int status,
                                               const std::string& why) {
  now_ = now;
  if (exited_ || !live_.contains(local_rank)) return take();
  wire::Failure failure = failure_of(local_rank);
  failure.kind = "start";
  failure.exit_code = status;
  failure.message = why;
  report(std::move(failure));
  worker_gone(local_rank);
  return take();
}

bool AgentCore::is_consequence_of_stop(const WorkerExit& exit) const {
  if (phase_ != Phase::kStopping) return false;
  const int status = exit.signal != 0 ? kExitSignalBase + exit.signal : exit.exit_code;
  return status == kExitSignalBase + SIGTERM || status == kExitSignalBase + SIGKILL ||
         status == kExitSignalBase + stop_signal_ || status == kExitCollectiveFailed;
}

std::vector<Action> AgentCore::on_worker_exit(TimePoint now, const WorkerExit& exit) {
  now_ = now;
  if (exited_ || !live_.contains(exit.local_rank)) return take();
  const bool success = exit.exit_code == 0 && exit.signal == 0;
  if (!success && !is_consequence_of_stop(exit)) {
    wire::Failure failure = failure_of(exit.local_rank);
    failure.pid = exit.pid;
    failure.exit_code = exit.exit_code;
    failure.signal = exit.signal;
    failure.time_ms = exit.time_ms;
    failure.secondary =
        exit.secondary || (exit.signal == 0 && exit.exit_code == kExitCollectiveFailed);
    failure.message = exit.message;
    failure.log_path = exit.log_path;
    failure.stderr_tail = exit.stderr_tail;
    report(std::move(failure));
  }
  worker_gone(exit.local_rank);
  return take();
}

std::vector<Action> AgentCore::on_worker_progress(TimePoint now, int local_rank,
                                                  std::int64_t step) {
  now_ = now;
  if (live_.contains(local_rank)) step_ = std::max(step_, step);
  return take();
}

void AgentCore::clear_round() {
  phase_ = Phase::kClearing;
  live_.clear();
  emit(ClearRound{});
}

std::vector<Action> AgentCore::on_round_cleared(TimePoint now,
                                                std::vector<std::string> operations) {
  now_ = now;
  if (exited_ || phase_ != Phase::kClearing) return take();
  operations_ = std::move(operations);
  phase_ = Phase::kIdle;
  settle();
  return take();
}

// Nothing of a round is on this node: does what is owed next.
void AgentCore::settle() {
  DDP_CHECK(phase_ == Phase::kIdle && live_.empty(), "{} workers live", live_.size());
  if (ending_) return exit_now();
  if (link_ == Link::kClosed) return begin_connecting();
  // A round that ended well before Stop came is reported as such first: it need not be run again.
  if (success_owed_) {
    success_owed_ = false;
    send(wire::Succeeded{round_.round});
  }
  if (stop_owed_) {
    // A round that was ordered and stopped before its turn came has no failures of its own.
    if (*stop_owed_ != round_.round) {
      late_failures_.clear();
      operations_.clear();
    }
    send(wire::Stopped{*stop_owed_, std::exchange(late_failures_, {}),
                       std::exchange(operations_, {})});
    stop_owed_.reset();
  } else if (next_round_) {
    const wire::RoundStart next = *std::exchange(next_round_, std::nullopt);
    begin_round(next);
  }
}

// ---- the end ----

// The first reason to end stays.
void AgentCore::end(int exit_code, std::string summary, std::string report) {
  if (ending_) return;
  ending_ =
      config::AgentResult{exit_code, std::move(summary), std::move(report), last_round_, restarts_};
}

void AgentCore::exit_now() {
  if (link_ == Link::kJoining || link_ == Link::kJoined) {
    if (leaving_) send(wire::Leave{ending_->summary});
    emit(Disconnect{});
  }
  link_ = Link::kClosed;
  exited_ = true;
  emit(Exit{*ending_});
}

std::vector<Action> AgentCore::on_signal(TimePoint now, int signal) {
  now_ = now;
  if (exited_) return take();
  if (ending_) {
    if (!live_.empty()) emit(KillWorkers{});
    return take();
  }
  leaving_ = true;
  end(kExitSignalBase + signal,
      fmt::format("node {} was stopped by {}", spec_.host, signal_name(signal)), "");
  // The reason stays empty: the workers get the signal as the user meant it, without an abort.
  if (phase_ == Phase::kStopping) emit(SignalWorkers{signal, ""});
  stop_workers(signal, "");
  return take();
}

std::vector<Action> AgentCore::on_parent_lost(TimePoint now) {
  now_ = now;
  if (exited_) return take();
  leaving_ = false;
  end(kExitInternal, "ddp-run is gone", "");
  if (phase_ == Phase::kIdle) {
    exit_now();
  } else if (phase_ != Phase::kClearing) {
    if (!live_.empty()) emit(KillWorkers{});
    clear_round();
  }
  return take();
}

// ---- time ----

std::optional<TimePoint> AgentCore::next_deadline() const {
  if (exited_) return std::nullopt;
  std::optional<TimePoint> next;
  const auto consider = [&next](TimePoint when) { next = next ? std::min(*next, when) : when; };
  if (phase_ == Phase::kStopping) consider(kill_at_);
  if (link_ == Link::kJoined) consider(next_heartbeat_);
  if (link_ == Link::kConnecting || link_ == Link::kJoining) {
    consider(connect_deadline());
  }
  return next;
}

std::vector<Action> AgentCore::on_tick(TimePoint now) {
  now_ = now;
  if (exited_) return take();
  if (phase_ == Phase::kStopping && now >= kill_at_) {
    emit(KillWorkers{});
    kill_at_ = now + kKillRepeat;
  }
  if (link_ == Link::kJoined && now >= next_heartbeat_) {
    send(wire::Heartbeat{step_});
    next_heartbeat_ = now + heartbeat_;
  }
  const bool connecting = link_ == Link::kConnecting || link_ == Link::kJoining;
  if (connecting && connect_deadline() <= now) give_up();
  return take();
}

}  // namespace ddp::agent
