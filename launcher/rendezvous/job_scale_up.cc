// How a new node gets into a running round: the workers are told, commit at a step boundary, and
// then the round changes. If they do not commit in time, the round changes without that.
#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "launcher/rendezvous/job.h"

namespace ddp::rendezvous {

// False if part of the job has already succeeded, because the job is then almost over, and false if
// the round is about to end because of failures.
bool Job::has_room() const {
  return phase_ == Phase::kRunning && !round_.cause_deadline && round_.successes == 0 &&
         static_cast<int>(round_.members.size()) < rules_.max_nodes;
}

// Nodes without a part in the round, by order of joining.
std::vector<const Job::Node*> Job::newcomers() const {
  std::vector<const Node*> found;
  for (const auto& [node_id, node] : nodes_) {
    if (!node.ending && member_of(node_id) == nullptr) found.push_back(&node);
  }
  std::sort(found.begin(), found.end(),
            [](const Node* a, const Node* b) { return a->order < b->order; });
  return found;
}

void Job::welcome_newcomer(const NodeId& node_id) {
  const Node& node = nodes_.at(node_id);
  if (member_of(node_id) != nullptr || !has_room()) {
    if (!round_.cause_deadline) send_spares({&node}, spare_text());
    return;
  }
  send_spares({&node}, fmt::format("round {} runs on {} nodes; this node comes in as soon as the "
                                   "workers have committed",
                                   round_.number, round_.members.size()));
  if (!round_.scale_up) begin_scale_up();
}

void Job::begin_scale_up(std::string reason, NodeId instead_of) {
  round_.scale_up = ScaleUp{.until = now_ + Duration{rules_.scale_up_ms},
                            .reason = std::move(reason),
                            .instead_of = std::move(instead_of)};
  for (const Member& member : round_.members) {
    if (member.presence != Member::Presence::kIn) continue;
    round_.scale_up->uncommitted.insert(rank_of(member));
    send(nodes_.at(member.info.node_id).connection,
         wire::CommitRound{round_.number, rules_.scale_up_ms, round_.scale_up->reason});
  }
  check_scale_up();
}

void Job::handle(const NodeId& from, const wire::NodeCommitted& message) {
  const Member* member = current_member(from, message.round);
  if (member == nullptr || !round_.scale_up) return;
  round_.scale_up->uncommitted.erase(rank_of(*member));
  check_scale_up();
}

void Job::check_scale_up() {
  if (!round_.scale_up) return;
  if (!round_.scale_up->uncommitted.empty() && now_ < round_.scale_up->until) return;
  const ScaleUp change = *std::exchange(round_.scale_up, std::nullopt);
  if (!change.instead_of.empty()) return replace_straggler(change);
  const std::vector<const Node*> nodes = newcomers();
  if (nodes.empty()) return;
  if (!has_room()) return send_spares(nodes, spare_text());
  const std::string& first = nodes.front()->join.host;
  begin_stop(nodes.size() == 1 ? fmt::format("node {} joined", first)
                               : fmt::format("node {} and {} more joined", first, nodes.size() - 1),
             false);
}

}  // namespace ddp::rendezvous
