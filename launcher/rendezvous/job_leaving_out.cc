// Nodes that the job does without: those whose health check failed, and those that failed too
// often.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/count_text.h"
#include "launcher/rendezvous/job.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kLeftOutMax = 64;       // Hosts that are remembered for people.
constexpr std::size_t kReasonBytesMax = 400;  // A reason may come from a node.

}  // namespace

// Whether another node is connected from the same host.
bool Job::shares_its_host(const NodeId& node_id, const std::string& host) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    return entry.first != node_id && entry.second.join.host == host;
  });
}

// Counts the failure that ended a round for the node on which it happened.
void Job::charge_node(const wire::Failure& cause) {
  if (cause.secondary) return;
  const Member& member = round_.members[static_cast<std::size_t>(cause.group_rank)];
  node_failures_.add(now_,
                     {.node_id = member.info.node_id,
                      .host = member.info.host,
                      .node_rank = member.node_rank,
                      .shares_its_host = shares_its_host(member.info.node_id, member.info.host)},
                     describe(cause));
}

// Why the node has failed too often; empty if it has not.
std::string Job::too_many_failures(const wire::Join& join) const {
  if (rules_.max_node_failures == 0) return "";
  NodeFailures::Node node{.node_id = join.node_id, .host = join.host, .node_rank = join.node_rank};
  // Looks at the other nodes only for the few that may be too bad.
  if (node_failures_.of(now_, node).failures < rules_.max_node_failures) return "";
  node.shares_its_host = shares_its_host(join.node_id, join.host);
  const NodeFailures::Count count = node_failures_.of(now_, node);
  if (count.failures < rules_.max_node_failures) return "";
  return fmt::format("it failed {} within an hour (--max-node-failures {}), the last time: {}",
                     count_text(count.failures, "time"), rules_.max_node_failures, count.last);
}

std::string Job::unhealthy(const wire::Join& join) {
  return fmt::format("its health check failed: {}", join.unfit.substr(0, kReasonBytesMax));
}

// Why the job does without a node that wants to join and has failed too often; empty if it does
// not. Nodes that may be dead are lost by now, so the others are really there.
std::string Job::dispensable(const wire::Join& join) const {
  // Its connection was lost, or the coordinator; its workers go on, with all others.
  if (join.running_round != kNoRound) return "";
  const auto found = nodes_.find(join.node_id);
  const bool is_available = found != nodes_.end() && !found->second.ending;
  if (available() - (is_available ? 1 : 0) < rules_.min_nodes) return "";
  return too_many_failures(join);
}

void Job::refuse_unfit(ConnectionId to, const std::string& host, const std::string& reason) {
  send(to,
       wire::Refused{.message = fmt::format("job {}: node {} is left out: {}", id_, host, reason),
                     .left_out = true});
  out_->push_back(CloseConnection{to});
  readmit(host);
  if (left_out_.size() == kLeftOutMax) left_out_.erase(left_out_.begin());
  left_out_.push_back({.host = host, .reason = reason});
  // Before a round begins, nobody waits any more.
  if (available() < rules_.min_nodes) announce();
}

void Job::readmit(const std::string& host) {
  if (refused_ && refused_->host == host) refused_.reset();
  std::erase_if(left_out_, [&](const LeftOut& left_out) { return left_out.host == host; });
}

// When a round is about to begin: leaves out connected nodes that have failed too often, the worst
// ones first, as long as the others are enough.
void Job::leave_out_failing() {
  if (rules_.max_node_failures == 0 || node_failures_.empty()) return;
  struct Failing {
    NodeId node_id;
    int failures;
    std::string reason;
  };
  std::vector<Failing> failing;
  for (const auto& [node_id, node] : nodes_) {
    if (node.ending) continue;
    std::string reason = too_many_failures(node.join);
    if (reason.empty()) continue;
    const int failures =
        node_failures_
            .of(now_,
                {.node_id = node_id, .host = node.join.host, .node_rank = node.join.node_rank})
            .failures;
    failing.push_back({.node_id = node_id, .failures = failures, .reason = std::move(reason)});
  }
  std::stable_sort(failing.begin(), failing.end(),
                   [](const Failing& a, const Failing& b) { return a.failures > b.failures; });
  for (const Failing& node : failing) {
    if (available() <= rules_.min_nodes) return;
    const ConnectionId connection = nodes_.at(node.node_id).connection;
    const std::string host = nodes_.at(node.node_id).join.host;
    remove_node(node.node_id);
    if (Member* member = member_of(node.node_id)) member->presence = Member::Presence::kLeft;
    next_start_.reason += fmt::format("; node {} is left out", host);
    refuse_unfit(connection, host, node.reason);
  }
}

std::string Job::left_out_text() const {
  std::string text;
  for (const LeftOut& left_out : left_out_) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", left_out.host, left_out.reason);
  }
  return text;
}

// What people must know of nodes that came and are not in; empty, or begins with "; ".
std::string Job::turned_away_text() const {
  std::string text;
  if (!left_out_.empty()) text += fmt::format("; left out: {}", left_out_text());
  if (refused_) text += fmt::format("; {} was refused: {}", refused_->host, refused_->reason);
  return text;
}

}  // namespace ddp::rendezvous
