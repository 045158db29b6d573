// Who may join a job, and what a join changes.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "launcher/rendezvous/job.h"

namespace ddp::rendezvous {

std::string Job::objection(const wire::Join& join) const {
  if (join.min_nodes != min_nodes_ || join.max_nodes != max_nodes_) {
    return fmt::format("this node has --nnodes {}:{}, the job has {}:{}; give every node the same",
                       join.min_nodes, join.max_nodes, min_nodes_, max_nodes_);
  }
  if (join.max_restarts != max_restarts_) {
    return fmt::format("this node has --max-restarts {}, the job has {}; give every node the same",
                       join.max_restarts, max_restarts_);
  }
  if (join.node_rank < 0) return "";
  for (const auto& [node_id, node] : nodes_) {
    if (node_id != join.node_id && node.join.node_rank == join.node_rank) {
      return fmt::format("--node-rank {} is taken by {}; give each node its own", join.node_rank,
                         node.join.host);
    }
  }
  return "";
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
    const std::string why_not = objection(join);
    if (!why_not.empty()) return refuse(from, fmt::format("job {}: {}", id_, why_not));
    if (const auto old = nodes_.find(join.node_id); old != nodes_.end()) {
      out.push_back(CloseConnection{old->second.connection});
      lose(join.node_id, "agent", "its agent joined anew");
    }
  }
  // Its loss may have used up the budget, hence after it.
  if (finished()) {
    // A node of the job that missed the end gets it; to others the job is closed.
    if (known_.contains(join.node_id) || join.last_round != kNoRound) {
      send(from, result_);
      out.push_back(CloseConnection{from});
      return;
    }
    return refuse(from, fmt::format("job {} is over: {}", id_, result_.summary));
  }
  add_node(from, join, peer_address);
  take_numbers(join);
  if (phase_ == Phase::kRunning) {
    welcome_into_running_round(join.node_id);
  } else if (phase_ == Phase::kWaiting) {
    try_start();
    announce();
  }
}

void Job::add_node(ConnectionId from, const wire::Join& join, std::string_view peer_address) {
  Node node;
  node.join = join;
  node.address = join.address.empty() ? std::string(peer_address) : join.address;
  node.connection = from;
  node.order = joins_++;
  node.heard = now_;
  nodes_[join.node_id] = std::move(node);
  node_of_[from] = join.node_id;
  known_.insert(join.node_id);
  send(from, wire::Welcome{options_.heartbeat.count(), options_.lease.count()});
}

// A join that knows of a round which this coordinator has not begun comes from the time of a lost
// one: its numbers go on, and the loss is charged once, whatever the number of nodes that report
// it.
void Job::take_numbers(const wire::Join& join) {
  const bool from_lost_coordinator = join.last_round >= next_round_;
  next_round_ = std::max(next_round_, join.last_round + 1);
  if (from_lost_coordinator) {
    inherited_restarts_ = std::max(inherited_restarts_, join.restarts);
    if (!coordinator_loss_charged_) {
      coordinator_loss_charged_ = true;
      ++own_restarts_;
      reason_ = "the rendezvous was lost and came back";
      reason_is_charged_ = true;
    }
  } else {
    inherited_restarts_ += std::max(0, join.restarts - restarts());
  }
  if (restarts() > max_restarts_) {
    finish(
        kExitCoordinatorLost,
        fmt::format("the rendezvous was lost in round {} and the budget of {} restarts is used up",
                    next_round_ - 1, max_restarts_),
        "");
  }
}

void Job::welcome_into_running_round(const NodeId& node_id) {
  if (cause_deadline_) return;  // The round is about to end by its failures anyway.
  Member* member = member_of(node_id);
  const bool any_succeeded =
      std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.succeeded; });
  // A job of which a part has succeeded is at its end; it is not worth a restart. A member that was
  // lost after its success still has it.
  if (member != nullptr || any_succeeded || static_cast<int>(members_.size()) >= max_nodes_) {
    return send_spare(nodes_.at(node_id));
  }
  begin_stop(fmt::format("node {} joined", nodes_.at(node_id).join.host), false);
}

}  // namespace ddp::rendezvous
