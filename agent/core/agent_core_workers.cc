// The workers of a round: how they begin, what they say, how they end or wait for the next round.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "agent/core/agent_core.h"
#include "common/base/exit_codes.h"
#include "common/base/signal_name.h"

namespace ddp::agent {
namespace {

// SIGKILL is repeated: a process may have forked between two looks at the process table.
constexpr Duration kKillRepeat{1'000};
// How far the time stamp of an error file may be off: one tick of the clock that stamps files.
constexpr Duration kFileClockTick{10};
// How many failures a `stopped` message tells in full. Frames have a size limit, and people read
// only so much.
constexpr std::size_t kFullFailures = 32;
// How long the kernel may take to end a process, with all its memory, while somebody waits for
// that.
constexpr Duration kKillLimit{5'000};
// The same, including the time for writing the stacks first.
constexpr Duration kHungLimit{30'000};

}  // namespace

void AgentCore::begin_round(const wire::RoundStart& message) {
  phase_ = Phase::kRunning;
  round_ = {.start = message};
  for (int local_rank = 0; local_rank < spec_.nproc; ++local_rank) round_.live.insert(local_rank);
  waiting_ = {};
  emit(SpawnWorkers{message});
}

// ---- ending and parking ----

// In every phase: afterwards the workers are ending or have ended, and settle() runs when the round
// is cleared (at once if there is nothing to clear).
void AgentCore::stop_workers(int signal, const std::string& reason, std::set<int> keep) {
  if (ending_) keep.clear();
  if (phase_ == Phase::kIdle && ending_ && !round_.parked.empty()) {
    // Workers that wait for another round are ended like those of a round.
    phase_ = Phase::kRunning;
    round_.live = round_.parked;
  }
  if (phase_ == Phase::kIdle) return settle();
  if (phase_ == Phase::kStopping && keep.empty()) return end_kept(signal, reason, {});
  if (phase_ != Phase::kRunning) return;
  std::erase_if(keep, [this](int local_rank) {
    return !round_.live.contains(local_rank) || round_.stuck.contains(local_rank);
  });
  std::erase_if(round_.parked, [&](int local_rank) { return !keep.contains(local_rank); });
  phase_ = Phase::kStopping;
  const std::int64_t limit_ms = spec_.rules.stop_timeout_ms;
  round_.stop = {.signal = signal,
                 .since = now_,
                 .keeping = std::move(keep),
                 .park_at = now_ + Duration{wire::park_limit_ms(limit_ms)},
                 .kill_at = now_ + Duration{limit_ms}};
  if (round_.live != round_.parked) emit(SignalWorkers{signal, reason, round_.stop.keeping});
  check_all_gone();
}

// The workers that may park must end after all, except those in `spared`.
void AgentCore::end_kept(int signal, const std::string& reason, const std::set<int>& spared) {
  std::set<int> others = round_.live;
  for (const int local_rank : round_.stop.keeping) {
    if (!spared.contains(local_rank)) others.erase(local_rank);
  }
  round_.stop.keeping = spared;
  std::erase_if(round_.parked, [&](int local_rank) { return !spared.contains(local_rank); });
  if (others == round_.live) return;
  round_.stop.kill_at = std::max(round_.stop.kill_at, now_ + Duration{spec_.rules.stop_timeout_ms});
  round_.stop.killed_at.reset();
  round_.stop.give_up_at.reset();
  emit(SignalWorkers{signal, reason, std::move(others)});
}

void AgentCore::hasten_end() {
  if (phase_ != Phase::kStopping) return;
  if (round_.stop.keeping != round_.parked && now_ >= round_.stop.park_at)
    end_kept(SIGTERM, "", std::set<int>(round_.parked));
  if (now_ >= round_.stop.kill_at) kill_workers();
}

void AgentCore::kill_workers() {
  round_.stop.kill_at = now_ + kKillRepeat;
  if (round_.live == round_.stop.keeping) return;
  emit(KillWorkers{round_.stop.keeping});
  const TimePoint limit = now_ + kill_patience();
  round_.stop.give_up_at =
      round_.stop.give_up_at ? std::min(*round_.stop.give_up_at, limit) : limit;
  if (!round_.stop.killed_at) round_.stop.killed_at = now_;
  if (now_ >= *round_.stop.give_up_at && round_.stop.keeping == round_.parked)
    clear_round(std::chrono::ceil<Duration>(now_ - *round_.stop.killed_at));
}

// As long as torchrun waits after SIGKILL, but less after a signal of the user, who does not want
// to wait so long. The coordinator allows for it: see wire::park_limit_ms().
Duration AgentCore::kill_patience() const {
  if (signals_ > 0) return kKillLimit;
  return std::max(kKillLimit, Duration{spec_.rules.stop_timeout_ms});
}

// Called after a worker has ended or parked.
void AgentCore::check_all_gone() {
  if (phase_ == Phase::kStopping && round_.live == round_.parked) return clear_round();
  const auto is_done = [this](int local_rank) {
    return round_.parked.contains(local_rank) || round_.stuck.contains(local_rank);
  };
  if (phase_ == Phase::kStopping && std::all_of(round_.live.begin(), round_.live.end(), is_done)) {
    // Stuck workers have had their time.
    emit(KillWorkers{round_.parked});
    return clear_round();
  }
  if (phase_ != Phase::kRunning || !round_.live.empty()) return;
  if (round_.failed) return;  // The failures are reported, and Stop will come.
  round_.success = Success::kOwed;
  clear_round();
}

void AgentCore::clear_round(Duration killed_for) {
  phase_ = Phase::kClearing;
  round_.live.clear();
  round_.stop.keeping.clear();
  emit(ClearRound{round_.parked, killed_for});
}

std::vector<Action> AgentCore::on_round_cleared(TimePoint now,
                                                std::vector<std::string> operations) {
  now_ = now;
  if (exited_ || phase_ != Phase::kClearing) return take();
  round_.operations = std::move(operations);
  phase_ = Phase::kIdle;
  settle();
  return take();
}

// ---- failures ----

wire::Failure AgentCore::failure_of(int local_rank) const {
  const auto group_rank = static_cast<std::size_t>(round_.start.group_rank);
  wire::Failure failure;
  failure.node_id = spec_.node_id;
  failure.host = spec_.host;
  failure.group_rank = round_.start.group_rank;
  failure.rank = round_.start.members[group_rank].first_rank + local_rank;
  failure.local_rank = local_rank;
  return failure;
}

wire::Failure AgentCore::failure_of(const WorkerExit& exit) const {
  wire::Failure failure = failure_of(exit.local_rank);
  failure.pid = exit.pid;
  failure.exit_code = exit.exit_code;
  failure.signal = exit.signal;
  failure.time_ms = exit.time_ms;
  failure.own_time = exit.has_error_file;
  failure.secondary =
      !round_.hung.contains(exit.local_rank) &&
      (exit.secondary || (exit.signal == 0 && exit.exit_code == kExitCollectiveFailed));
  failure.message = exit.message;
  failure.cause = exit.cause;
  failure.callstack = exit.callstack;
  failure.log_path = exit.log_path;
  failure.stderr_tail = exit.stderr_tail;
  if (!ended_by_stop(exit)) return failure;
  // Its status comes from our signal and says nothing of the failure. EXIT_FAILURE is the status of
  // a program that an exception ended.
  failure.was_ending = true;
  failure.exit_code = EXIT_FAILURE;
  failure.signal = 0;
  failure.cause.clear();
  return failure;
}

void AgentCore::report(wire::Failure failure, Duration age) {
  Seen seen{std::move(failure), now_ - age};
  if (phase_ == Phase::kStopping) {
    if (round_.late_failures.size() >= kFullFailures) {
      seen.failure.callstack.clear();
      seen.failure.stderr_tail.clear();
    }
    round_.late_failures.push_back(std::move(seen));
    return;
  }
  round_.failed = true;
  if (link_ == Link::kJoined) send_failure(seen);
  round_.failures.push_back(std::move(seen));
}

wire::Failure AgentCore::aged(const Seen& seen) const {
  wire::Failure failure = seen.failure;
  failure.age_ms = std::chrono::duration_cast<Duration>(now_ - seen.when).count();
  return failure;
}

std::int64_t AgentCore::sent_ms() const {
  return std::chrono::duration_cast<Duration>(now_.time_since_epoch()).count();
}

void AgentCore::send_failure(const Seen& seen) {
  send(wire::WorkerFailed{round_.start.round, aged(seen), round_.step, !round_.hello.empty(),
                          sent_ms()});
}

std::vector<Action> AgentCore::on_spawn_failed(TimePoint now, int local_rank, int status,
                                               const std::string& why) {
  now_ = now;
  if (exited_ || !round_.live.contains(local_rank)) return take();
  wire::Failure failure = failure_of(local_rank);
  failure.kind = "start";
  failure.exit_code = status;
  failure.message = why;
  report(std::move(failure));
  round_.live.erase(local_rank);
  check_all_gone();
  return take();
}

// Whether the exit status follows from the stop.
bool AgentCore::ended_by_stop(const WorkerExit& exit) const {
  if (phase_ != Phase::kStopping || round_.hung.contains(exit.local_rank)) return false;
  const int status = exit.signal != 0 ? kExitSignalBase + exit.signal : exit.exit_code;
  // It was not sent a signal.
  if (round_.stop.keeping.contains(exit.local_rank)) return status == kExitCollectiveFailed;
  return status == kExitSignalBase + SIGTERM || status == kExitSignalBase + SIGKILL ||
         status == kExitSignalBase + round_.stop.signal || status == kExitCollectiveFailed;
}

// Whether its error file is older than the stop: then it was already failing, and may be the reason
// why the others failed.
bool AgentCore::failed_before_stop(const WorkerExit& exit) const {
  return exit.has_error_file && !exit.secondary && exit.exit_code != kExitCollectiveFailed &&
         now_ - exit.age <= round_.stop.since + kFileClockTick;
}

std::vector<Action> AgentCore::on_worker_exit(TimePoint now, const WorkerExit& exit) {
  now_ = now;
  if (exited_) return take();
  if (!round_.live.contains(exit.local_rank)) {
    note_parked_end(exit);
    return take();
  }
  const bool success = exit.exit_code == 0 && exit.signal == 0;
  if (!success && (!ended_by_stop(exit) || failed_before_stop(exit))) {
    report(failure_of(exit), exit.age);
  }
  for (std::set<int>* each :
       {&round_.live, &round_.parked, &round_.stop.keeping, &round_.reconfigurable}) {
    each->erase(exit.local_rank);
  }
  if (round_.commit) round_.commit->awaited.erase(exit.local_rank);
  round_.progress_at.erase(exit.local_rank);
  round_.kill_ends.erase(exit.local_rank);
  check_committed();
  check_all_gone();
  return take();
}

// The round fails: a new worker on this host would need what the stuck one holds, such as a device
// or a network card.
std::vector<Action> AgentCore::on_worker_stuck(TimePoint now, const WorkerExit& exit) {
  now_ = now;
  if (exited_ || !round_.live.contains(exit.local_rank) ||
      !round_.stuck.insert(exit.local_rank).second)
    return take();
  round_.progress_at.erase(exit.local_rank);
  if (phase_ == Phase::kRunning) {
    wire::Failure failure = failure_of(exit);
    failure.kind = "stuck";
    report(std::move(failure), exit.age);
  }
  check_all_gone();
  return take();
}

// This ends no round: the next one starts another worker in its place.
void AgentCore::note_parked_end(const WorkerExit& exit) {
  if (round_.parked.erase(exit.local_rank) == 0) return;
  const std::string how =
      exit.signal != 0 ? signal_name(exit.signal) : fmt::format("exit code {}", exit.exit_code);
  emit(
      Print{fmt::format("the worker with local rank {} ended while it waited for the next round: "
                        "{}; another takes its place",
                        exit.local_rank, how)});
}

// ---- what workers say ----

std::vector<Action> AgentCore::on_worker_hello(TimePoint now, int local_rank, bool reconfigurable) {
  now_ = now;
  if (!round_.live.contains(local_rank)) return take();
  round_.hello.insert(local_rank);
  if (reconfigurable) round_.reconfigurable.insert(local_rank);
  return take();
}

void AgentCore::on_worker_joined(int local_rank, Round round) {
  if (round == round_.start.round && round_.live.contains(local_rank)) {
    round_.joined.insert(local_rank);
  }
}

// Whether a worker still needs the rendezvous' store to meet the others. Those that are not
// reconfigurable do not say when they have met, and nobody makes a step before.
bool AgentCore::is_meeting() const {
  if (phase_ != Phase::kRunning || round_.start.store_port != 0 || round_.step >= 0) return false;
  return std::any_of(round_.live.begin(), round_.live.end(), [this](int local_rank) {
    return round_.reconfigurable.contains(local_rank) && !round_.joined.contains(local_rank) &&
           !round_.parked.contains(local_rank);
  });
}

std::vector<Action> AgentCore::on_worker_progress(TimePoint now, int local_rank,
                                                  std::int64_t step) {
  now_ = now;
  if (exited_ || !round_.live.contains(local_rank)) return take();
  const bool first = round_.step < 0 && step >= 0;
  round_.step = std::max(round_.step, step);
  round_.progress_at[local_rank] = now;
  // What follows the end of a round depends on whether it came to any step, so the first step is
  // told at once.
  if (first && link_ == Link::kJoined && phase_ == Phase::kRunning) {
    send(heartbeat());
    joined_.next_heartbeat = now_ + joined_.heartbeat;
  }
  return take();
}

// All workers of a group report the same loss and speed, so one speaks for the node.
void AgentCore::on_worker_metrics(int local_rank, const wire::Progress& progress) {
  if (!round_.live.contains(local_rank)) return;
  const auto index = static_cast<std::size_t>(local_rank);
  if (std::isfinite(progress.computed_ms)) {
    if (index >= round_.computed.size()) round_.computed.resize(index + 1);
    round_.computed[index] = {.step = progress.step, .ms = progress.computed_ms};
  }
  if (round_.metrics && local_rank > round_.metrics->local_rank) return;
  round_.metrics = {local_rank, progress};
}

wire::Heartbeat AgentCore::heartbeat() const {
  wire::Heartbeat message;
  message.step = round_.step;
  message.computed = round_.computed;
  message.meeting = is_meeting();
  message.sent_ms = sent_ms();
  if (!round_.start.members.empty()) message.round = round_.start.round;
  if (!round_.metrics) return message;
  const wire::Progress& told = round_.metrics->progress;
  // Programs without a loss report 0.
  if (told.loss != 0) message.loss = told.loss;
  message.loss_is = wire::name_if_not_finite(told.loss);
  message.samples_per_second = told.samples_per_second;
  message.total_steps = told.total_steps;
  return message;
}

std::vector<Action> AgentCore::on_worker_parked(TimePoint now, int local_rank, Round round,
                                                std::int64_t step) {
  now_ = now;
  if (exited_ || round != round_.start.round || !round_.live.contains(local_rank)) return take();
  if (round_.parked.contains(local_rank)) return take();
  round_.step = std::max(round_.step, step);
  round_.progress_at.erase(local_rank);
  if (round_.commit) round_.commit->awaited.erase(local_rank);
  if (phase_ == Phase::kStopping && round_.stop.keeping.contains(local_rank)) {
    round_.parked.insert(local_rank);
    check_all_gone();
  } else if (phase_ == Phase::kRunning) {
    // The coordinator may not know what the worker has noticed: a connection between two workers
    // can break while all agents are well.
    round_.parked.insert(local_rank);
    wire::Failure failure = failure_of(local_rank);
    failure.kind = "collective";
    failure.exit_code = kExitCollectiveFailed;
    failure.secondary = true;
    failure.message = "a collective failed because of another rank";
    report(std::move(failure));
  }
  check_committed();
  return take();
}

std::vector<Action> AgentCore::on_worker_committed(TimePoint now, int local_rank, Round round,
                                                   std::int64_t step) {
  now_ = now;
  if (exited_ || round != round_.start.round || !round_.commit) return take();
  Commit& commit = *round_.commit;
  if (commit.awaited.erase(local_rank) == 0) return take();
  commit.step = commit.step < 0 ? step : std::min(commit.step, step);
  check_committed();
  return take();
}

void AgentCore::check_committed() {
  if (!round_.commit || !round_.commit->awaited.empty()) return;
  const std::int64_t step = round_.commit->step;
  round_.commit.reset();
  if (link_ == Link::kJoined) send(wire::NodeCommitted{round_.start.round, step});
}

// ---- workers that hang ----

std::optional<TimePoint> AgentCore::stall_deadline() const {
  if (spec_.progress_timeout_ms <= 0 || phase_ != Phase::kRunning || round_.examining) {
    return std::nullopt;
  }
  std::optional<TimePoint> first;
  for (const auto& [local_rank, when] : round_.progress_at)
    first = first ? std::min(*first, when) : when;
  if (first) *first += Duration{spec_.progress_timeout_ms};
  return first;
}

void AgentCore::look_for_stalled() {
  const auto deadline = stall_deadline();
  if (!deadline || now_ < *deadline) return;
  FindHung question;
  for (const auto& [local_rank, when] : round_.progress_at) {
    if (now_ - when >= Duration{spec_.progress_timeout_ms}) question.stalled.insert(local_rank);
  }
  round_.examining = true;
  emit(std::move(question));
}

// Reports killed workers that do not end: their exit would have been the failure that ends the
// round.
void AgentCore::look_for_unkilled() {
  if (phase_ != Phase::kRunning) return;
  const std::map<int, TimePoint> waiting = round_.kill_ends;
  for (const auto& [local_rank, when] : waiting) {
    if (now_ < when) continue;
    round_.kill_ends.erase(local_rank);
    if (!round_.stuck.insert(local_rank).second) continue;
    wire::Failure failure = failure_of(local_rank);
    failure.kind = "stuck";
    failure.signal = SIGKILL;
    failure.cause = "no progress, and SIGKILL does not end it: the kernel holds it (state D)";
    report(std::move(failure));
  }
}

std::vector<Action> AgentCore::on_hung_workers(TimePoint now, const std::set<int>& hung) {
  now_ = now;
  round_.examining = false;
  if (exited_ || phase_ != Phase::kRunning) return take();
  const Duration limit{spec_.progress_timeout_ms};
  for (auto& [local_rank, when] : round_.progress_at) {
    // Workers that wait for another rank get the same time again.
    if (now_ - when >= limit && !hung.contains(local_rank)) when = now_;
  }
  for (const int local_rank : hung) {
    const auto found = round_.progress_at.find(local_rank);
    if (found == round_.progress_at.end() || now_ - found->second < limit) continue;
    round_.progress_at.erase(found);
    round_.hung.insert(local_rank);
    round_.kill_ends[local_rank] = now_ + kHungLimit;
    emit(DumpStacks{local_rank});
    emit(KillWorker{local_rank, fmt::format("no progress for {:.3g} s; its stacks are in its log",
                                            static_cast<double>(limit.count()) / 1'000)});
  }
  return take();
}

}  // namespace ddp::agent
