#include "launcher/rendezvous/job.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

// On top of the job's own limit between SIGTERM and SIGKILL: for the kill itself and the answer.
constexpr Duration kStopGrace{5'000};
// What a faulty agent can make the coordinator keep of one round.
constexpr std::size_t kFailuresMax = 4'096;

}  // namespace

Job::Job(const CoreOptions& options, TimePoint now, const wire::Join& first)
    : options_(options),
      id_(first.job_id),
      min_nodes_(first.min_nodes),
      max_nodes_(first.max_nodes),
      max_restarts_(first.max_restarts),
      join_timeout_(first.join_timeout_ms),
      last_call_(first.last_call_ms),
      stop_timeout_(first.stop_timeout_ms),
      now_(now) {
  wait_for_nodes();
}

void Job::send(ConnectionId to, const wire::CoordinatorMessage& message) {
  out_->push_back(SendTo{to, message});
}

bool Job::abandoned() const {
  const bool awaited = std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.presence != Member::Presence::kLeft;
  });
  return phase_ == Phase::kWaiting && nodes_.empty() && !awaited && any_left_;
}

Job::Member* Job::member_of(const NodeId& node_id) {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
    return member.info.node_id == node_id;
  });
  return found == members_.end() ? nullptr : &*found;
}

Job::Member* Job::current_member(const NodeId& node_id, Round round) {
  if (round != round_ || (phase_ != Phase::kRunning && phase_ != Phase::kStopping)) return nullptr;
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
  nodes_.at(node_id).heard = now;
  std::visit([&](const auto& m) { handle(node_id, m); }, message);
}

// RendezvousCore closes a connection that joins twice.
void Job::handle(const NodeId&, const wire::Join&) {}

void Job::handle(const NodeId& from, const wire::Heartbeat& message) {
  nodes_.at(from).step = message.step;
}

void Job::handle(const NodeId& from, const wire::WorkerFailed& message) {
  Member* member = current_member(from, message.round);
  if (member == nullptr) return;
  record(message.failure, *member);
  stop_for_failures();
}

void Job::handle(const NodeId& from, const wire::Succeeded& message) {
  Member* member = current_member(from, message.round);
  if (member == nullptr) return;
  member->succeeded = true;
  check_all_succeeded();
  stop_for_failures();
}

void Job::handle(const NodeId&, const wire::NodeCommitted&) {}

void Job::handle(const NodeId& from, const wire::Stopped& message) {
  Member* member = current_member(from, message.round);
  if (member == nullptr || phase_ != Phase::kStopping) return;
  for (const wire::Failure& failure : message.failures) record(failure, *member);
  member->operations = message.operations;
  member->stopped = true;
  check_stopped();
}

void Job::handle(const NodeId& from, const wire::Leave& message) {
  const std::string host = nodes_.at(from).join.host;
  out_->push_back(CloseConnection{nodes_.at(from).connection});
  remove_node(from);
  any_left_ = true;
  Member* member = member_of(from);
  const bool was_in = member != nullptr && member->presence == Member::Presence::kIn;
  if (member != nullptr) member->presence = Member::Presence::kLeft;
  const std::string reason =
      message.reason.empty() ? fmt::format("node {} left", host) : message.reason;
  if (phase_ == Phase::kWaiting) {
    try_start();
    announce();
  } else if (phase_ == Phase::kStopping) {
    if (was_in) leave_reason_ = reason;
    check_stopped();
  } else if (was_in && !member->succeeded) {
    leave_reason_ = reason;
    begin_stop(reason, false);
  }
}

// ---- losing nodes and ending rounds ----

void Job::disconnect(TimePoint now, ConnectionId from, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  const auto found = node_of_.find(from);
  if (found == node_of_.end()) return;
  const NodeId node_id = found->second;
  lose(node_id, "agent", "its connection closed");
}

void Job::remove_node(const NodeId& node_id) {
  const auto found = nodes_.find(node_id);
  node_of_.erase(found->second.connection);
  nodes_.erase(found);
}

void Job::lose(const NodeId& node_id, const std::string& kind, const std::string& why) {
  wire::Failure failure;
  failure.kind = kind;
  failure.exit_code = kExitNodeLost;
  failure.message = why;
  failure.host = nodes_.at(node_id).join.host;
  remove_node(node_id);
  Member* member = member_of(node_id);
  const bool was_in = member != nullptr && member->presence == Member::Presence::kIn;
  if (was_in) member->presence = Member::Presence::kLost;
  if (phase_ == Phase::kWaiting) {
    try_start();
    announce();
  } else if (phase_ != Phase::kFinished && was_in && !member->succeeded) {
    record(std::move(failure), *member);
    begin_stop(describe(failures_.back()), true);
    check_stopped();
  } else {
    check_stopped();
  }
}

void Job::record(wire::Failure failure, const Member& member) {
  // Who reports is known from the connection; what it says of itself does not count.
  failure.node_id = member.info.node_id;
  failure.host = member.info.host;
  failure.group_rank = static_cast<int>(&member - members_.data());
  if (phase_ == Phase::kStopping && !stop_is_failure_ && failure.kind == "worker" &&
      !is_permanent(failure)) {
    // Workers that fail while the round is stopped for a node's coming or going follow from that.
    failure.secondary = true;
  }
  // A cause that comes late takes the place of a consequence.
  if (failures_.size() >= kFailuresMax && (failure.secondary || !failures_.back().secondary))
    return;
  if (failures_.size() >= kFailuresMax) failures_.pop_back();
  failures_.push_back(std::move(failure));
}

bool Job::cause_may_come() const {
  int workers = 0;
  for (const Member& member : members_) workers += member.succeeded ? 0 : member.info.nproc;
  return failures_.size() < static_cast<std::size_t>(workers);
}

// The stop would end the worker that caused all this before it has said how it failed: by its
// SIGTERM while it takes its time to exit, for others often end sooner.
void Job::stop_for_failures() {
  if (phase_ != Phase::kRunning || failures_.empty()) return;
  const wire::Failure& root = failures_[root_cause(failures_)];
  if (root.secondary && cause_may_come()) {
    if (!cause_deadline_) cause_deadline_ = now_ + options_.cause_wait;
    if (now_ < *cause_deadline_) return;
  }
  begin_stop(describe(root), true);
}

void Job::begin_stop(const std::string& reason, bool is_failure) {
  if (phase_ != Phase::kRunning) return;
  phase_ = Phase::kStopping;
  stop_reason_ = reason;
  stop_is_failure_ = is_failure;
  stop_deadline_ = now_ + stop_timeout_ + kStopGrace;
  for (const Member& member : members_) {
    if (member.presence != Member::Presence::kIn) continue;
    send(nodes_.at(member.info.node_id).connection, wire::Stop{round_, reason});
  }
  check_stopped();
}

void Job::check_stopped() {
  if (phase_ != Phase::kStopping) return;
  const bool all = std::all_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.stopped || member.presence != Member::Presence::kIn;
  });
  if (all) decide_after_stop();
}

// All processes of the round are gone.
void Job::decide_after_stop() {
  const auto primary = std::any_of(failures_.begin(), failures_.end(),
                                   [](const wire::Failure& failure) { return !failure.secondary; });
  if (!primary && (!stop_is_failure_ || !leave_reason_.empty())) {
    // Where a node left, secondary failures follow from that, whichever was heard of first.
    reason_ = leave_reason_.empty() ? stop_reason_ : leave_reason_;
    reason_is_charged_ = false;
    return wait_for_nodes();
  }
  const wire::Failure& root = failures_[root_cause(failures_)];
  const bool permanent = is_permanent(root);
  if (!permanent && restarts() < max_restarts_) {
    ++own_restarts_;
    reason_ = describe(root);
    reason_is_charged_ = true;
    return wait_for_nodes();
  }
  std::string summary = describe(root);
  if (!permanent && max_restarts_ > 0) {
    summary += fmt::format("; all {} restarts are used up", max_restarts_);
  }
  finish(exit_status(root), summary, round_report(permanent));
}

std::string Job::round_report(bool permanent) const {
  std::vector<std::pair<std::string, std::vector<std::string>>> operations;
  for (const Member& member : members_)
    operations.emplace_back(member.info.host, member.operations);
  return failure_report({.job_id = id_,
                         .failures = failures_,
                         .round = round_,
                         .nodes = static_cast<int>(members_.size()),
                         .world_size = world_size_,
                         .restarts = restarts(),
                         .max_restarts = max_restarts_,
                         .retry_would_not_help = permanent,
                         .operations = std::move(operations)});
}

void Job::check_all_succeeded() {
  const bool all = std::all_of(members_.begin(), members_.end(),
                               [](const Member& member) { return member.succeeded; });
  if (!all) return;
  finish(kExitSuccess,
         fmt::format("{} on {} succeeded in round {} after {}", counted(world_size_, "worker"),
                     counted(static_cast<int>(members_.size()), "node"), round_,
                     counted(restarts(), "restart")),
         "");
}

void Job::finish(int exit_code, const std::string& summary, const std::string& report) {
  phase_ = Phase::kFinished;
  result_ = wire::Finish{exit_code, summary, report};
  for (const auto& [node_id, node] : nodes_) send(node.connection, result_);
  out_->push_back(JobFinished{id_, result_});
}

void Job::end(TimePoint now, int exit_code, const std::string& reason, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  if (!finished()) finish(exit_code, reason, "");
}

// ---- time ----

std::optional<TimePoint> Job::next_deadline() const {
  if (phase_ == Phase::kFinished) return std::nullopt;
  std::optional<TimePoint> next;
  const auto consider = [&next](TimePoint when) { next = next ? std::min(*next, when) : when; };
  for (const auto& [node_id, node] : nodes_) consider(node.heard + options_.lease);
  if (phase_ == Phase::kStopping) consider(stop_deadline_);
  if (phase_ == Phase::kRunning && cause_deadline_) consider(*cause_deadline_);
  if (phase_ == Phase::kWaiting) {
    consider(last_call_ends_ ? *last_call_ends_ : waiting_since_ + join_timeout_);
    if (!nodes_.empty()) consider(next_announcement_);
  }
  return next;
}

void Job::tick(TimePoint now, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  // Those without a part in the round go first, lest a round starts with one of them.
  std::vector<NodeId> silent;
  for (const bool has_part : {false, true}) {
    for (const auto& [node_id, node] : nodes_) {
      if (now - node.heard < options_.lease) continue;
      if ((current_member(node_id, round_) != nullptr) == has_part) silent.push_back(node_id);
    }
  }
  for (const NodeId& node_id : silent) {
    if (finished()) return;
    out.push_back(CloseConnection{nodes_.at(node_id).connection});
    lose(node_id, "lease",
         fmt::format("nothing was heard of it for {:.1f} s",
                     static_cast<double>(options_.lease.count()) / 1'000));
  }
  stop_for_failures();
  if (phase_ == Phase::kStopping && now >= stop_deadline_) {
    std::vector<NodeId> late;
    for (const Member& member : members_) {
      if (member.presence == Member::Presence::kIn && !member.stopped)
        late.push_back(member.info.node_id);
    }
    for (const NodeId& node_id : late) {
      out.push_back(CloseConnection{nodes_.at(node_id).connection});
      lose(node_id, "agent", "it did not stop its workers in time");
    }
  }
  if (phase_ != Phase::kWaiting) return;
  if (last_call_ends_ && now >= *last_call_ends_) return start_round();
  if (!last_call_ends_ && now >= waiting_since_ + join_timeout_) return finish_for_missing_nodes();
  if (now >= next_announcement_) announce();
}

}  // namespace ddp::rendezvous
