// What happens when time passes.
#include <algorithm>

#include <fmt/format.h>

#include "launcher/rendezvous/job.h"

namespace ddp::rendezvous {

std::optional<TimePoint> Job::next_deadline() const {
  if (phase_ == Phase::kFinished) return std::nullopt;
  std::optional<TimePoint> next;
  const auto consider = [&next](TimePoint when) { next = next ? std::min(*next, when) : when; };
  if (!by_silence_.empty()) consider(nodes_.at(by_silence_.front()).heard + options_.lease);
  for (const HeldJoin& held : held_) consider(held.until);
  if (num_ending_ > 0) {
    for (const auto& [node_id, node] : nodes_) {
      if (node.ending != kNoRound) consider(node.ending_until);
    }
  }
  if (phase_ == Phase::kStopping) consider(stop_deadline_);
  if (phase_ == Phase::kRecovering) consider(awaited_until_);
  if (is_running() && cause_deadline_) consider(*cause_deadline_);
  if (scale_up_until_) consider(*scale_up_until_);
  if (phase_ == Phase::kWaiting) {
    consider(last_call_ends_ ? std::max(*last_call_ends_, start_at_)
                             : waiting_since_ + Duration{rules_.join_timeout_ms});
    // Without a wait for the last call, only the back-off delays the round.
    if (last_call_ends_ && start_at_ > now_) consider(start_at_);
    if (!nodes_.empty()) consider(next_announcement_);
  }
  return next;
}

void Job::lose_silent_nodes() {
  // Nodes without a part in the round are removed first, so that no round starts with one of them.
  std::vector<NodeId> silent;
  std::vector<NodeId> silent_members;
  for (const NodeId& node_id : by_silence_) {
    if (now_ - nodes_.at(node_id).heard < options_.lease) break;
    const bool has_part = current_member(node_id, round_) != nullptr;
    (has_part ? silent_members : silent).push_back(node_id);
  }
  silent.insert(silent.end(), silent_members.begin(), silent_members.end());
  for (const NodeId& node_id : silent) {
    if (finished()) return;
    out_->push_back(CloseConnection{nodes_.at(node_id).connection});
    lose(node_id, "lease",
         fmt::format("no message came from it for {:.1f} s",
                     static_cast<double>(options_.lease.count()) / 1'000));
  }
}

void Job::lose_slow_nodes() {
  std::vector<NodeId> late;
  if (phase_ == Phase::kStopping && now_ >= stop_deadline_) {
    for (const std::size_t rank : unstopped_) late.push_back(members_[rank].info.node_id);
  }
  if (num_ending_ > 0) {
    for (const auto& [node_id, node] : nodes_) {
      if (node.ending != kNoRound && now_ >= node.ending_until) late.push_back(node_id);
    }
  }
  for (const NodeId& node_id : late) {
    if (finished()) return;
    out_->push_back(CloseConnection{nodes_.at(node_id).connection});
    lose(node_id, "agent", "it did not stop its workers in time");
  }
}

void Job::tick(TimePoint now, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  lose_silent_nodes();
  release_held();
  stop_for_failures();
  check_scale_up();
  if (phase_ == Phase::kRecovering && now >= awaited_until_) {
    std::vector<NodeId> missing;
    for (const std::size_t rank : awaited_) missing.push_back(members_[rank].info.node_id);
    miss(missing, "it did not come back after the rendezvous was lost");
  }
  lose_slow_nodes();
  if (phase_ != Phase::kWaiting) return;
  if (last_call_ends_) try_start();
  if (phase_ != Phase::kWaiting) return;
  if (!last_call_ends_ && now >= waiting_since_ + Duration{rules_.join_timeout_ms})
    return finish_for_missing_nodes();
  if (now >= next_announcement_) announce();
}

}  // namespace ddp::rendezvous
