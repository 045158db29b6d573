#include "agent/core/agent_core.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "agent/core/missing_hosts.h"
#include "common/base/check.h"
#include "common/base/exit_codes.h"
#include "common/base/signal_name.h"

namespace ddp::agent {
namespace {

// How often to repeat which nodes are missing when nothing has changed. A little less than the
// period of the coordinator's own messages, so that one that comes early is printed.
constexpr Duration kWaitingPeriod{4'500};

bool same_members(const wire::Waiting& a, const wire::Waiting& b) {
  return a.have == b.have && a.min_nodes == b.min_nodes && a.max_nodes == b.max_nodes &&
         a.hosts == b.hosts;
}

}  // namespace

AgentCore::AgentCore(config::JobSpec spec, Round last_round, int restarts)
    : spec_(std::move(spec)),
      coordinator_{.host = spec_.coordinator_host, .port = spec_.coordinator_port},
      last_round_(last_round),
      restarts_(restarts) {}

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
  const Duration heartbeat{std::max<std::int64_t>(message.heartbeat_ms, 1)};
  joined_ = {
      .at = endpoint(), .since = now_, .heartbeat = heartbeat, .next_heartbeat = now_ + heartbeat};
  waiting_ = {};
  if (!message.notice.empty()) emit(Print{message.notice});
  send_what_waited();
}

void AgentCore::handle(const wire::Waiting& message) {
  if (ending_ || !spec_.tells_waiting) return;
  if (same_members(waiting_, message) && now_ < waiting_printed_ + kWaitingPeriod) return;
  waiting_ = message;
  waiting_printed_ = now_;
  emit(Print{message.text + missing_hosts(spec_.expected_hosts, message)});
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
  round_.success = Success::kNone;
  orders_ = {};
  if (!unkillable_.empty() && phase_ == Phase::kIdle) return leave_to_others();
  if (phase_ == Phase::kIdle) return begin_round(message);
  orders_.next_round = message;
  stop_workers(SIGTERM, fmt::format("round {} begins", message.round), round_.reconfigurable);
}

void AgentCore::handle(const wire::CommitRound& message) {
  if (ending_ || message.round != last_round_) return;
  // The round was ordered but has not begun here, so nothing could commit. Without an answer the
  // coordinator would wait for us until its time limit.
  if (orders_.next_round) return send(wire::NodeCommitted{message.round, -1});
  if (message.round != round_.start.round || phase_ == Phase::kStopping) return;
  round_.commit = Commit{};
  for (const int local_rank : round_.live) {
    if (round_.hello.contains(local_rank) && !round_.parked.contains(local_rank)) {
      round_.commit->awaited.insert(local_rank);
    }
  }
  if (!round_.commit->awaited.empty()) {
    emit(RequestCommit{message.round, message.deadline_ms, round_.commit->awaited});
  }
  check_committed();
}

void AgentCore::handle(const wire::Stop& message) {
  if (ending_ || message.round != last_round_) return;
  orders_ = {.stop = message.round};
  round_.commit.reset();
  stop_workers(SIGTERM, message.reason,
               message.keep_workers ? round_.reconfigurable : std::set<int>{});
}

void AgentCore::handle(const wire::Finish& message) {
  if (ending_) return;
  end(message.exit_code, message.summary, message.report);
  ending_->error = message.error;
  stop_workers(SIGTERM, "the job is over: " + message.summary);
}

void AgentCore::handle(const wire::Refused& message) {
  if (ending_) return;
  end(message.left_out ? kExitUnfit : kExitRefused,
      fmt::format("the rendezvous {} refuses this node: {}", endpoint(), message.message), "");
  stop_workers(SIGTERM, "the rendezvous refuses this node");
}

// Called when nothing of a round is left on this node. Does what is owed next.
void AgentCore::settle() {
  DDP_CHECK(phase_ == Phase::kIdle && round_.live.empty(), "{} workers live", round_.live.size());
  if (ending_ && !round_.parked.empty()) return stop_workers(SIGTERM, ending_->summary);
  if (ending_) return leave_and_exit();
  if (link_ == Link::kClosed) return begin_connecting();
  if (link_ != Link::kJoined) return;
  // If the round succeeded before Stop came, success is reported first, so the round is not run
  // again.
  if (round_.success == Success::kOwed) tell_success();
  if (orders_.stop) {
    // A round that was ordered and then stopped before it began here has no failures of its own.
    if (*orders_.stop != round_.start.round) {
      round_.late_failures.clear();
      round_.operations.clear();
    }
    round_.success = Success::kNone;
    wire::Stopped stopped{*orders_.stop,
                          {},
                          static_cast<int>(round_.parked.size()),
                          round_.step,
                          !round_.hello.empty(),
                          std::exchange(round_.operations, {})};
    stopped.sent_ms = sent_ms();
    for (const Seen& seen : std::exchange(round_.late_failures, {}))
      stopped.failures.push_back(aged(seen));
    send(std::move(stopped));
    orders_.stop.reset();
  } else if (orders_.next_round && !unkillable_.empty()) {
    leave_to_others();
  } else if (orders_.next_round) {
    const wire::RoundStart next = *std::exchange(orders_.next_round, std::nullopt);
    begin_round(next);
  }
}

// As if the node were lost: the others go on without it, or with another one in its place.
void AgentCore::leave_to_others() {
  orders_ = {};
  leaving_ = true;
  end(kExitWorkerUnkillable,
      fmt::format("node {} takes no further part: {}; a new worker would need what it holds",
                  spec_.host, unkillable_),
      "");
  stop_workers(SIGTERM, ending_->summary);
}

// ---- success ----

void AgentCore::tell_success() {
  if (round_.success != Success::kTold)
    round_.barrier_ends = now_ + Duration{std::max<std::int64_t>(spec_.exit_barrier_ms, 0)};
  round_.success = Success::kTold;
  send(wire::Succeeded{round_.start.round});
}

// Only once the coordinator knows of the success: a node that leaves earlier counts as failed.
bool AgentCore::waits_for_others() const {
  return spec_.exit_barrier_ms >= 0 && round_.success == Success::kTold && !ending_ &&
         link_ == Link::kJoined && phase_ == Phase::kIdle;
}

void AgentCore::leave_the_others() {
  leaving_ = true;
  end(kExitSuccess,
      fmt::format("the workers of {} have finished; other nodes did not finish within "
                  "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT ({:.3g} s)",
                  spec_.host, static_cast<double>(spec_.exit_barrier_ms) / 1'000),
      "");
  emit(Print{ending_->summary});
  stop_workers(SIGTERM, ending_->summary);
}

// ---- the end ----

// The first reason to end stays.
void AgentCore::end(int exit_code, std::string summary, std::string report) {
  if (ending_) return;
  asked_at_ = now_;
  ending_ =
      config::AgentResult{exit_code, std::move(summary), std::move(report), last_round_, restarts_};
}

void AgentCore::leave_and_exit() {
  if (link_ == Link::kJoining || link_ == Link::kJoined) {
    if (leaving_) send(wire::Leave{ending_->summary});
    emit(Disconnect{});
  }
  link_ = Link::kClosed;
  left_ = true;
  if (checkpoints_.under_way == 0 || signals_ > 1 || parent_lost_) return exit_now();
  emit(Print{fmt::format("waiting for {} to be written",
                         checkpoints_.under_way == 1
                             ? "a part of a checkpoint"
                             : fmt::format("{} parts of checkpoints", checkpoints_.under_way))});
}

void AgentCore::exit_now() {
  exited_ = true;
  ending_->has_checkpoint = checkpoints_.any;
  ending_->at_time_limit = checkpoints_.last == LastCheckpoint::kWritten;
  emit(Exit{*ending_, parent_lost_});
}

// ---- checkpoints ----

std::vector<Action> AgentCore::on_snapshots(TimePoint now, int count) {
  now_ = now;
  if (exited_) return take();
  checkpoints_.under_way = count;
  checkpoints_.any = checkpoints_.any || count > 0;
  const bool last_is_written = note_last_checkpoint();
  if (last_is_written) {
    emit(
        Print{"the job's time is almost over: a checkpoint was written, so the workers are stopped "
              "now"});
  }
  if (left_) {
    if (count == 0) exit_now();
  } else if (last_is_written) {
    stop_by_signal(SIGTERM);
  }
  return take();
}

// True when it has just been written. Workers that cannot write a checkpoint are left alone: an
// early end would be of no use to them.
bool AgentCore::note_last_checkpoint() {
  if (checkpoints_.last == LastCheckpoint::kAsked && checkpoints_.under_way > 0) {
    checkpoints_.last = LastCheckpoint::kBeingWritten;
  } else if (checkpoints_.last == LastCheckpoint::kBeingWritten && checkpoints_.under_way == 0) {
    checkpoints_.last = LastCheckpoint::kWritten;
    return true;
  }
  return false;
}

std::vector<Action> AgentCore::on_checkpoint_moment(TimePoint now) {
  now_ = now;
  if (exited_) return take();
  checkpoints_.last = LastCheckpoint::kAsked;
  emit(RequestCheckpoint{});
  return take();
}

// ---- signals and the loss of ddp-run ----

std::vector<Action> AgentCore::on_signal(TimePoint now, int signal) {
  now_ = now;
  if (exited_) return take();
  if (signal == spec_.checkpoint_signal) {
    emit(RequestCheckpoint{});
  } else {
    stop_by_signal(signal);
  }
  return take();
}

void AgentCore::stop_by_signal(int signal) {
  // Whatever ends a whole session, control group or job (systemd, a scheduler, a closed terminal)
  // sends its signal to this process and to ddp-run, which forwards it, and sometimes two of them.
  // That is one request: workers that have begun their last checkpoint are not killed for it. Only
  // Ctrl-C comes once for each time that it is pressed.
  constexpr Duration kOneRequest{3'000};
  const bool is_pressed_again = signal == SIGINT && signals_ > 0;
  if (ending_ && !is_pressed_again && now_ - asked_at_ < kOneRequest) return;
  asked_at_ = now_;
  ++signals_;
  if (left_) {
    if (signals_ > 1) exit_now();
    return;
  }
  if (ending_) {
    // Under SLURM all nodes get the signal, and one of them may already have ended the job because
    // of it.
    const bool impatient = signals_ > 1 || !spec_.signals_from_launcher;
    if (impatient && !round_.live.empty()) kill_workers();
    return;
  }
  leaving_ = true;
  end(kExitSignalBase + signal,
      fmt::format("node {} was stopped by {}", spec_.host, signal_name(signal)), "");
  // The reason is empty, so that the workers get only the signal, without an abort.
  if (phase_ == Phase::kStopping) {
    if (!round_.stop.keeping.empty())
      round_.stop.kill_at = now_ + Duration{spec_.rules.stop_timeout_ms};
    round_.stop.keeping.clear();
    round_.parked.clear();
    emit(SignalWorkers{signal, ""});
  }
  stop_workers(signal, "");
}

std::vector<Action> AgentCore::on_parent_lost(TimePoint now) {
  now_ = now;
  if (exited_) return take();
  leaving_ = false;
  parent_lost_ = true;
  end(kExitInternal, "ddp-run is gone", "");
  round_.parked.clear();
  if (left_) {
    exit_now();
  } else if (phase_ == Phase::kIdle) {
    leave_and_exit();
  } else if (phase_ != Phase::kClearing) {
    if (!round_.live.empty()) emit(KillWorkers{});
    clear_round();
  }
  return take();
}

// ---- time ----

std::optional<TimePoint> AgentCore::next_deadline() const {
  if (exited_) return std::nullopt;
  std::optional<TimePoint> next;
  const auto consider = [&next](TimePoint when) { next = next ? std::min(*next, when) : when; };
  if (phase_ == Phase::kStopping) consider(round_.stop.kill_at);
  if (phase_ == Phase::kStopping && round_.stop.keeping != round_.parked)
    consider(round_.stop.park_at);
  if (const auto stalled = stall_deadline()) consider(*stalled);
  if (phase_ == Phase::kRunning) {
    for (const auto& [local_rank, when] : round_.kill_ends) consider(when);
  }
  if (link_ == Link::kJoined) consider(joined_.next_heartbeat);
  if (is_connecting()) consider(connect_deadline());
  if (waits_for_others()) consider(round_.barrier_ends);
  return next;
}

std::vector<Action> AgentCore::on_tick(TimePoint now) {
  now_ = now;
  if (exited_) return take();
  hasten_end();
  look_for_stalled();
  look_for_unkilled();
  if (link_ == Link::kJoined && now >= joined_.next_heartbeat) {
    send(heartbeat());
    joined_.next_heartbeat = now + joined_.heartbeat;
  }
  if (is_connecting() && connect_deadline() <= now) give_up();
  if (waits_for_others() && round_.barrier_ends <= now) leave_the_others();
  return take();
}

}  // namespace ddp::agent
