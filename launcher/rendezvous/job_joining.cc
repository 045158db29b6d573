// Who may join a job, and what a join changes.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/release.h"
#include "launcher/rendezvous/job.h"

namespace ddp::rendezvous {

std::string Job::objection(const wire::Join& join) const {
  const std::string other = config::difference(join.rules, join.host, rules_, rules_host_);
  if (!other.empty()) return other + "; start every node of the job with the same value";
  const std::string holder = other_holder(join);
  if (holder.empty() || join.node_rank_is_wish) return "";
  return fmt::format("--node-rank {} is taken by {}; give each node its own", join.node_rank,
                     holder);
}

// The host of another node that has the rank that this one asks for; empty if there is none.
std::string Job::other_holder(const wire::Join& join) const {
  const auto holder = rank_holder_.find(join.node_rank);
  if (holder == rank_holder_.end() || holder->second == join.node_id) return "";
  return nodes_.at(holder->second).join.host;
}

// A node asks for a rank that another node on the same host has. That other node may be dead
// without the coordinator knowing it yet; its next heartbeat, or the lack of one, will tell. True
// if the join must wait for that.
bool Job::hold_for_silent(ConnectionId from, const wire::Join& join,
                          std::string_view peer_address) {
  const auto holder = rank_holder_.find(join.node_rank);
  if (holder == rank_holder_.end() || holder->second == join.node_id) return false;
  const Node& node = nodes_.at(holder->second);
  if (node.join.host != join.host) return false;
  const Duration silent = heartbeat() + heartbeat() / 2;
  if (now_ - node.heard >= silent) {
    const NodeId gone = holder->second;
    out_->push_back(CloseConnection{node.connection});
    lose({gone}, "agent", "another ddp-run on its host has taken its place");
    return false;
  }
  const auto mine = [from](const HeldJoin& held) { return held.from == from; };
  if (std::any_of(held_.begin(), held_.end(), mine)) return false;
  held_.push_back({from, join, std::string(peer_address), node.heard + silent});
  return true;
}

// Repeats the held joins. The nodes that they waited for are lost by now, or known to be alive.
void Job::release_held() {
  std::vector<HeldJoin> due;
  for (const HeldJoin& held : held_) {
    if (now_ >= held.until) due.push_back(held);
  }
  for (const HeldJoin& held : due) {
    // The end of the job has answered all of them.
    if (finished()) return;
    join(now_, held.from, held.join, held.peer_address, *out_);
    std::erase_if(held_, [&](const HeldJoin& other) { return other.from == held.from; });
  }
}

void Job::refuse(ConnectionId to, const std::string& message) {
  send(to, wire::Refused{message});
  out_->push_back(CloseConnection{to});
}

void Job::join(TimePoint now, ConnectionId from, const wire::Join& join,
               std::string_view peer_address, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  if (!finished()) {
    if (!join.unfit.empty()) return refuse_unfit(from, join.host, unhealthy(join));
    if (hold_for_silent(from, join, peer_address)) return;
    const std::string why_not = objection(join);
    if (!why_not.empty()) {
      refuse(from, fmt::format("job {}: {}", id_, why_not));
      if (phase_ != Phase::kWaiting) return;
      refused_ = {.host = join.host, .reason = why_not};
      return announce();
    }
    if (const std::string failing = dispensable(join); !failing.empty())
      return refuse_unfit(from, join.host, failing);
    if (take_over(from, join)) return;
    if (const auto old = nodes_.find(join.node_id); old != nodes_.end()) {
      out.push_back(CloseConnection{old->second.connection});
      lose({join.node_id}, "agent", "its agent joined again");
    }
  }
  // After the loss above, because that may have used up the budget.
  if (finished()) {
    // A node of the job that missed the end gets the result. Other nodes are refused.
    if (known_.contains(join.node_id) || join.last_round != kNoRound) {
      send(from, result_);
      out.push_back(CloseConnection{from});
      return;
    }
    return refuse(from, fmt::format("job {} is over: {}", id_, result_.summary));
  }
  add_node(from, join, peer_address);
  take_numbers(join);
  place(join.node_id);
  if (const auto found = nodes_.find(join.node_id); found != nodes_.end()) {
    found->second.join.members = {};
  }
}

// The same program may lie in different folders.
bool Job::runs_another_program(const wire::Join& join) const {
  const auto name = [](std::string_view path) { return path.substr(path.rfind('/') + 1); };
  return !program_.empty() && !join.program.empty() && join.role == role_ &&
         name(join.program) != name(program_);
}

void Job::add_node(ConnectionId from, const wire::Join& join, std::string_view peer_address) {
  Node node;
  node.join = join;
  wire::Welcome welcome{heartbeat().count(), lease().count()};
  if (const std::string holder = other_holder(join); !holder.empty()) {
    node.join.node_rank =
        -1;  // The rank was only a preference; otherwise objection() would have refused it.
    welcome.notice = fmt::format(
        "--node-rank {} is taken by {}; this node gets another rank. Give each node its own",
        join.node_rank, holder);
  } else if (runs_another_program(join)) {
    welcome.notice = fmt::format(
        "this node runs {}, and the first one runs {}; ranks of different programs wait for each "
        "other for ever, so type the same line on all nodes, or give programs that belong together "
        "different --role",
        join.program, program_);
  } else if (!join.release.empty() && join.release != release()) {
    welcome.notice = fmt::format(
        "this node has ddp-run {} and the rendezvous has {}; they work together, but install the "
        "same release on all nodes",
        join.release, release());
  }
  node.address = join.address.empty() ? std::string(peer_address) : join.address;
  node.connection = from;
  node.order = joins_++;
  node.heard = now_;
  node.silence = by_silence_.insert(by_silence_.end(), join.node_id);
  if (node.join.node_rank >= 0) rank_holder_[node.join.node_rank] = join.node_id;
  nodes_[join.node_id] = std::move(node);
  node_of_[from] = join.node_id;
  known_.insert(join.node_id);
  readmit(join.host);
  if (program_.empty()) {
    program_ = join.program;
    role_ = join.role;
  }
  send(from, welcome);
}

// A member's agent has lost its connection before we noticed. Its workers go on, and so does the
// round. The last messages in both directions may be lost, so both sides repeat them.
bool Job::take_over(ConnectionId from, const wire::Join& join) {
  const auto found = nodes_.find(join.node_id);
  if (found == nodes_.end() || join.running_round == kNoRound) return false;
  Member* member = current_member(join.node_id, join.running_round);
  if (member == nullptr) return false;
  Node& node = found->second;
  out_->push_back(CloseConnection{node.connection});
  node_of_.erase(node.connection);
  node_of_[from] = join.node_id;
  node.connection = from;
  node.heard = now_;
  node.clock = {};
  by_silence_.splice(by_silence_.end(), by_silence_, node.silence);
  send(from, wire::Welcome{heartbeat().count(), lease().count()});
  const int rank = static_cast<int>(rank_of(*member));
  if (phase_ == Phase::kStopping) {
    send(from, wire::Stop{round_.number, round_.stop.reason, round_.stop.keeps_workers});
    return true;
  }
  round_.failures.forget(rank);
  if (round_.failures.empty()) round_.cause_deadline.reset();
  if (round_.scale_up && round_.scale_up->uncommitted.contains(rank_of(*member))) {
    const auto left = std::chrono::duration_cast<Duration>(round_.scale_up->until - now_).count();
    send(from, wire::CommitRound{round_.number, std::max<std::int64_t>(left, 0),
                                 round_.scale_up->reason});
  }
  return true;
}

// If a join knows of a round that this coordinator has not begun, an earlier coordinator was lost.
// Its numbers continue. If that round does not go on, the loss is charged once, however many nodes
// report it.
void Job::take_numbers(const wire::Join& join) {
  const bool from_lost_coordinator = join.last_round >= next_round_;
  next_round_ = std::max(next_round_, join.last_round + 1);
  if (from_lost_coordinator) {
    budget_.inherited = std::max(budget_.inherited, join.restarts);
    earlier_.loss_to_charge = true;
    earlier_.began_rounds = true;
  } else {
    budget_.inherited += std::max(0, join.restarts - budget_.restarts());
  }
}

void Job::place(const NodeId& node_id) {
  Node& node = nodes_.at(node_id);
  const Round round = node.join.running_round;
  if (round != kNoRound) {
    if (returns_to_round(node.join)) return come_back(node_id);
    return order_end_of(round, node_id);
  }
  if (phase_ == Phase::kRecovering && member_of(node_id) != nullptr) {
    miss({node_id}, "its workers ended while the rendezvous was away");
  } else if (phase_ == Phase::kRunning) {
    welcome_newcomer(node_id);
  } else if (phase_ == Phase::kWaiting) {
    try_start();
    announce();
  }
}

// Orders the node to end a round that is over but still runs there.
void Job::order_end_of(Round round, const NodeId& node_id) {
  Node& node = nodes_.at(node_id);
  if (!node.ending) ++num_ending_;
  node.ending = Ending{round, now_ + stop_timeout_};
  send(node.connection, wire::Stop{round, fmt::format("round {} is over", round), true});
}

void Job::ended(const NodeId& node_id) {
  Node& node = nodes_.at(node_id);
  node.ending.reset();
  node.join.running_round = kNoRound;
  --num_ending_;
  place(node_id);
}

}  // namespace ddp::rendezvous
