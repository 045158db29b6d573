// Handles agents' messages, the loss of nodes, and the end of rounds and of the job.
#include "launcher/rendezvous/job.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/count_text.h"
#include "common/base/exit_codes.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

// How much longer a node may take to stop than its time to park and the time between SIGTERM and
// SIGKILL: for the kill itself and the answer.
constexpr Duration kStopGrace{5'000};
// Speeds are measured over at least this long.
constexpr Duration kPaceInterval{1'000};
constexpr std::size_t kLossNameMax = 4;  // An agent may say anything.
// What is kept of what an agent says of its ranks' waits.
constexpr std::size_t kWaitsMax = 32;
constexpr std::size_t kWaitBytesMax = 400;
// What is kept of other texts of an agent. They go into messages to all nodes, whose size has a
// limit. Our agents send less.
constexpr std::size_t kReasonBytesMax = 400;
constexpr std::size_t kShortTextMax = 4'096;
constexpr std::size_t kExceptionTextMax = 64u << 10;

void cut_texts(wire::Failure& failure) {
  const auto cut = [](std::string& text, std::size_t limit) {
    if (text.size() > limit) text.resize(limit);
  };
  for (std::string* const text : {&failure.kind, &failure.cause, &failure.log_path})
    cut(*text, kShortTextMax);
  for (std::string* const text : {&failure.message, &failure.callstack})
    cut(*text, kExceptionTextMax);
}

}  // namespace

Job::Job(const CoreOptions& options, TimePoint now, const wire::Join& first,
         const JobRecord* record, std::optional<JobHistory> history,
         std::function<std::vector<std::string>()> waiting_jobs)
    : options_(options),
      waiting_jobs_(std::move(waiting_jobs)),
      id_(first.job_id),
      rules_(first.rules),
      rules_host_(first.host),
      stop_timeout_(rules_.stop_timeout_ms + wire::park_limit_ms(rules_.stop_timeout_ms) +
                    kStopGrace.count()),
      now_(now),
      node_failures_(rules_.max_node_failures),
      next_start_{.reason = "first round", .not_before = now},
      lateness_(rules_.exclude_stragglers),
      finished_at_(now),
      history_(history ? std::move(*history) : JobHistory(now)) {
  if (record != nullptr) {
    next_round_ = record->next_round;
    budget_.inherited = record->restarts;
    budget_.best_step = record->best_step;
    budget_.no_progress = record->no_progress;
    node_failures_.restore(now, record->node_failures);
    left_out_ = record->left_out;
    earlier_.began_rounds = record->next_round > 0;
    if (earlier_.began_rounds) next_start_.reason = "the rendezvous moved";
  }
  wait_for_nodes();
  if (record == nullptr || !record->finished) return;
  phase_ = Phase::kFinished;
  result_ = record->result;
}

void Job::send(ConnectionId to, const wire::CoordinatorMessage& message) {
  out_->push_back(SendTo{to, message});
}

bool Job::abandoned() const {
  if (phase_ != Phase::kWaiting || !nodes_.empty() || !any_left_ || !held_.empty()) return false;
  return std::none_of(round_.members.begin(), round_.members.end(), [](const Member& member) {
    return member.presence != Member::Presence::kLeft;
  });
}

const Job::Member* Job::member_of(const NodeId& node_id) const {
  const auto found = round_.rank_of_node.find(node_id);
  return found == round_.rank_of_node.end() ? nullptr : &round_.members[found->second];
}

Job::Member* Job::member_of(const NodeId& node_id) {
  const auto found = round_.rank_of_node.find(node_id);
  return found == round_.rank_of_node.end() ? nullptr : &round_.members[found->second];
}

Job::Member* Job::current_member(const NodeId& node_id, Round round) {
  if (round != round_.number || (!is_running() && phase_ != Phase::kStopping)) return nullptr;
  Member* member = member_of(node_id);
  // A node that came back after its loss is in, but has no part in this round.
  return member != nullptr && member->presence == Member::Presence::kIn ? member : nullptr;
}

// ---- what agents say ----

void Job::message(TimePoint now, ConnectionId from, const wire::AgentMessage& message,
                  std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  const auto found = node_of_.find(from);
  if (found == node_of_.end()) return;
  const NodeId node_id = found->second;
  if (phase_ == Phase::kFinished) return;
  Node& node = nodes_.at(node_id);
  node.heard = now;
  by_silence_.splice(by_silence_.end(), by_silence_, node.silence);
  std::visit([&](const auto& m) { handle(node_id, m); }, message);
}

void Job::leave(TimePoint now, const NodeId& node_id, const std::string& reason,
                std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  if (phase_ != Phase::kFinished && nodes_.contains(node_id)) handle(node_id, wire::Leave{reason});
}

// RendezvousCore closes a connection that joins twice.
void Job::handle(const NodeId&, const wire::Join&) {}

void Job::note_saved(const std::vector<wire::SavedShare>& shares) {
  for (const wire::SavedShare& share : shares) history_.saved(now_, share);
}

void Job::handle(const NodeId& from, const wire::Heartbeat& message) {
  Node& node = nodes_.at(from);
  node.clock.sent_at(message.sent_ms, now_);
  note_saved(message.saved);
  node.waits.clear();
  // A node that has not begun this round yet still tells of the last one.
  if (message.round != kNoRound && message.round != round_.number) return;
  // Heartbeats repeat what workers have told last, however long ago.
  const bool is_new = message.step != node.step || message.loss != node.loss;
  node.step = message.step;
  node.loss = message.loss;
  node.loss_is = message.loss_is.substr(0, kLossNameMax);
  node.samples_per_second = message.samples_per_second;
  node.total_steps = message.total_steps;
  for (const std::string& wait : message.waits) {
    if (node.waits.size() < kWaitsMax) node.waits.push_back(wait.substr(0, kWaitBytesMax));
  }
  measure_pace(node);
  if (stands_still(node) && node.samples_per_second > 0) node.samples_per_second = 0;
  // A node that is still ending another round reports nothing about this one.
  Member* const member = current_member(from, round_.number);
  if (member == nullptr) return;
  note_progress(*member, message.step, false);
  note_computed(*member, message);
  if (rank_of(*member) == 0)
    history_.sample(now_, is_new ? node.loss : std::numeric_limits<double>::quiet_NaN(),
                    node.samples_per_second, node.pace.steps_per_second);
  if (message.meeting && round_.is_adopted) end_meeting();
}

void Job::measure_pace(Node& node) const {
  Node::Pace& pace = node.pace;
  if (pace.step < 0 || node.step < pace.step) {
    pace = {};
    pace.step = pace.newest = node.step;
    pace.since = pace.moved = now_;
    return;
  }
  if (node.step > pace.newest) {
    pace.a_step = (now_ - pace.moved) / static_cast<double>(node.step - pace.newest);
    pace.newest = node.step;
    pace.moved = now_;
  }
  const std::chrono::duration<double> passed = now_ - pace.since;
  if (passed < kPaceInterval) return;
  pace.steps_per_second = static_cast<double>(node.step - pace.step) / passed.count();
  pace.step = node.step;
  pace.since = now_;
}

// A training whose steps take longer than the interval makes none in most intervals, and yet its
// workers are as fast as they say.
bool Job::stands_still(const Node& node) const {
  return node.pace.steps_per_second == 0 && now_ - node.pace.moved >= 2 * node.pace.a_step;
}

void Job::handle(const NodeId& from, const wire::WorkerFailed& message) {
  const TimePoint sent = nodes_.at(from).clock.sent_at(message.sent_ms, now_);
  Member* member = current_member(from, message.round);
  if (member == nullptr) return;
  note_progress(*member, message.step, message.reports_progress);
  record(message.failure, *member, sent);
  stop_for_failures();
}

void Job::handle(const NodeId& from, const wire::Succeeded& message) {
  note_saved(message.saved);
  Member* member = current_member(from, message.round);
  if (member == nullptr || member->succeeded) return;
  member->succeeded = true;
  ++round_.successes;
  round_.succeeded_workers += member->info.nproc;
  check_all_succeeded();
  stop_for_failures();
}

void Job::handle(const NodeId& from, const wire::Stopped& message) {
  note_saved(message.saved);
  const TimePoint sent = nodes_.at(from).clock.sent_at(message.sent_ms, now_);
  nodes_.at(from).join.store_port = message.store_port;
  if (const auto& ending = nodes_.at(from).ending) {
    if (ending->round == message.round) ended(from);
    return;
  }
  Member* member = current_member(from, message.round);
  if (member == nullptr || phase_ != Phase::kStopping) return;
  note_progress(*member, message.step, message.reports_progress);
  for (const wire::Failure& failure : message.failures) record(failure, *member, sent);
  member->operations = message.operations;
  round_.stop.unanswered.erase(rank_of(*member));
  check_stopped();
}

void Job::handle(const NodeId& from, const wire::Leave& message) {
  const std::string host = nodes_.at(from).join.host;
  out_->push_back(CloseConnection{nodes_.at(from).connection});
  remove_node(from);
  any_left_ = true;
  Member* member = member_of(from);
  const bool was_in = member != nullptr && member->presence == Member::Presence::kIn;
  if (member != nullptr) {
    member->presence = Member::Presence::kLeft;
    round_.stop.unanswered.erase(rank_of(*member));
  }
  const std::string reason = message.reason.empty() ? fmt::format("node {} left", host)
                                                    : message.reason.substr(0, kReasonBytesMax);
  if (phase_ == Phase::kWaiting) {
    try_start();
    announce();
  } else if (phase_ == Phase::kStopping) {
    if (was_in) round_.leave_reason = reason;
    check_stopped();
  } else if (was_in && !member->succeeded) {
    round_.leave_reason = reason;
    begin_stop(reason, false);
  }
}

// ---- losing nodes and ending rounds ----

void Job::disconnect(TimePoint now, ConnectionId from, Duration silent, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  std::erase_if(held_, [from](const HeldJoin& held) { return held.from == from; });
  const auto found = node_of_.find(from);
  if (found == node_of_.end()) return;
  const NodeId node_id = found->second;
  lose({node_id}, "agent", "its connection closed", silent);
}

void Job::remove_node(const NodeId& node_id) {
  const auto found = nodes_.find(node_id);
  const Node& node = found->second;
  node_of_.erase(node.connection);
  by_silence_.erase(node.silence);
  if (node.ending) --num_ending_;
  const auto holder = rank_holder_.find(node.join.node_rank);
  if (holder != rank_holder_.end() && holder->second == node_id) rank_holder_.erase(holder);
  nodes_.erase(found);
}

// Nothing is decided before all of them are out. So no round begins with a node that is known to be
// lost.
void Job::lose(const std::vector<NodeId>& node_ids, const std::string& kind, const std::string& why,
               Duration silent) {
  if (node_ids.empty()) return;
  std::string reason;
  for (const NodeId& node_id : node_ids) {
    wire::Failure loss;
    loss.kind = kind;
    loss.exit_code = kExitNodeLost;
    loss.message = why;
    const std::string ends_round = take_out(node_id, std::move(loss), silent);
    if (reason.empty()) reason = ends_round;
  }
  if (phase_ == Phase::kWaiting) {
    try_start();
    announce();
    return;
  }
  if (!reason.empty()) begin_stop(reason, true);
  check_stopped();
}

std::string Job::take_out(const NodeId& node_id, wire::Failure loss, Duration silent) {
  loss.node_id = node_id;
  loss.host = nodes_.at(node_id).join.host;
  remove_node(node_id);
  Member* const member = member_of(node_id);
  if (member == nullptr) return "";
  member->gone_since = now_ - silent;
  // After the end, nodes go.
  if (member->presence != Member::Presence::kIn || phase_ == Phase::kFinished) return "";
  member->presence = Member::Presence::kLost;
  round_.stop.unanswered.erase(rank_of(*member));
  if (phase_ == Phase::kWaiting || member->succeeded) return "";
  std::string reason = describe(loss);
  record(std::move(loss), *member, now_);
  return reason;
}

void Job::record(wire::Failure failure, const Member& member, TimePoint told) {
  // The connection identifies the node; what the message says about that does not count.
  failure.node_id = member.info.node_id;
  failure.host = member.info.host;
  failure.group_rank = static_cast<int>(rank_of(member));
  cut_texts(failure);
  if (phase_ == Phase::kStopping && !round_.stop.is_failure && failure.kind == "worker" &&
      !is_permanent(failure)) {
    // Workers that fail while the round is stopped because a node came or left fail as a
    // consequence.
    failure.secondary = true;
  }
  ++failures_reported_;
  round_.failures.add(std::move(failure), told);
}

const wire::Failure& Job::root() const {
  return round_.failures.all()[root_cause(round_.failures.all())];
}

bool Job::cause_may_come() const {
  const int workers = round_.world_size - round_.succeeded_workers;
  return round_.failures.size() < static_cast<std::size_t>(std::max(0, workers));
}

// Why to wait: others often end before the worker that caused the failure, which may take long to
// exit. A stop would kill that worker by SIGTERM before it has said how it failed. If workers park,
// there is no SIGTERM at first, and a cause that ends by itself is reported with `stopped`.
void Job::stop_for_failures() {
  if (!is_running() || round_.failures.empty()) return;
  const wire::Failure& cause = root();
  if (cause.secondary && cause.kind != "collective" && cause_may_come()) {
    if (!round_.cause_deadline) round_.cause_deadline = now_ + options_.cause_wait;
    if (now_ < *round_.cause_deadline) return;
  }
  begin_stop(describe(cause), true);
}

void Job::begin_stop(const std::string& reason, bool is_failure) {
  if (!is_running()) return;
  history_.end_round(now_, reason);
  phase_ = Phase::kStopping;
  round_.stop = {.reason = reason,
                 .is_failure = is_failure,
                 .keeps_workers = !is_failure || keeps_workers(),
                 .deadline = now_ + stop_timeout_};
  round_.scale_up.reset();
  close_lateness();
  // Nodes that are not back yet are told when they come.
  for (const std::size_t rank : round_.recovery.awaited) {
    round_.members[rank].presence = Member::Presence::kLost;
    round_.members[rank].gone_since = now_;
  }
  round_.recovery = {};
  for (const Member& member : round_.members) {
    if (member.presence != Member::Presence::kIn) continue;
    round_.stop.unanswered.insert(rank_of(member));
    send(nodes_.at(member.info.node_id).connection,
         wire::Stop{round_.number, reason, round_.stop.keeps_workers});
  }
  check_stopped();
}

void Job::check_stopped() {
  if (phase_ == Phase::kStopping && round_.stop.unanswered.empty()) decide_after_stop();
}

std::string Job::round_report(bool permanent) const {
  std::vector<std::pair<std::string, std::vector<std::string>>> operations;
  for (const Member& member : round_.members)
    operations.emplace_back(member.info.host, member.operations);
  return failure_report({.program = program_,
                         .job_id = id_,
                         .failures = round_.failures.all(),
                         .round = round_.number,
                         .nodes = static_cast<int>(round_.members.size()),
                         .world_size = round_.world_size,
                         .restarts = budget_.restarts(),
                         .max_restarts = rules_.max_restarts,
                         .retry_would_not_help = permanent,
                         .late = lateness_text(),
                         .operations = std::move(operations),
                         .left_out = left_out_});
}

void Job::check_all_succeeded() {
  if (round_.successes < round_.members.size()) return;
  finish(kExitSuccess,
         fmt::format("{} on {} succeeded in round {} after {}",
                     count_text(round_.world_size, "worker"),
                     count_text(std::ssize(round_.members), "node"), round_.number,
                     count_text(budget_.restarts(), "restart")),
         "");
}

void Job::persist() {
  out_->push_back(Persist{{.job_id = id_,
                           .next_round = next_round_,
                           .restarts = budget_.restarts(),
                           .best_step = budget_.best_step,
                           .no_progress = budget_.no_progress,
                           .finished = finished(),
                           .result = result_,
                           .node_failures = node_failures_.records(now_),
                           .left_out = left_out_}});
}

void Job::finish(int exit_code, const std::string& summary, const std::string& report,
                 const std::string& error) {
  close_lateness();
  const std::string late = lateness_text();
  // Nobody prints the summary of a job that has ended well.
  if (exit_code == kExitSuccess && !late.empty()) notify(late);
  history_.end_round(now_, summary);
  phase_ = Phase::kFinished;
  finished_at_ = now_;
  result_ = wire::Finish{exit_code, late.empty() ? summary : fmt::format("{}; {}", summary, late),
                         report, error};
  persist();
  for (const auto& [node_id, node] : nodes_) send(node.connection, result_);
  for (const HeldJoin& held : held_) {
    refuse(held.from, fmt::format("job {} is over: {}", id_, result_.summary));
  }
  held_.clear();
  out_->push_back(JobFinished{id_, result_});
}

void Job::end(TimePoint now, int exit_code, const std::string& reason, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  if (!finished()) finish(exit_code, reason, "");
}

}  // namespace ddp::rendezvous
