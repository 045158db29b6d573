// What happens when time passes.
#include <algorithm>

#include <fmt/format.h>

#include "launcher/rendezvous/job.h"

namespace ddp::rendezvous {

std::optional<TimePoint> Job::next_deadline() const {
  if (phase_ == Phase::kFinished) return std::nullopt;
  std::optional<TimePoint> next;
  const auto consider = [&next](TimePoint when) { next = next ? std::min(*next, when) : when; };
  if (!by_silence_.empty()) consider(nodes_.at(by_silence_.front()).heard + lease());
  for (const HeldJoin& held : held_) consider(held.until);
  if (num_ending_ > 0) {
    for (const auto& [node_id, node] : nodes_) {
      if (node.ending) consider(node.ending->until);
    }
  }
  if (phase_ == Phase::kStopping) consider(round_.stop.deadline);
  if (phase_ == Phase::kRecovering) consider(recovery_deadline());
  if (is_running() && round_.cause_deadline) consider(*round_.cause_deadline);
  if (round_.scale_up) consider(round_.scale_up->until);
  if (phase_ == Phase::kWaiting) {
    consider(gathering_.last_call_ends
                 ? std::max(*gathering_.last_call_ends, next_start_.not_before)
                 : gathering_.since + Duration{rules_.join_timeout_ms});
    // Without a wait for the last call, only the back-off delays the round.
    if (gathering_.last_call_ends && next_start_.not_before > now_)
      consider(next_start_.not_before);
    if (!nodes_.empty()) consider(next_announcement_);
  }
  return next;
}

void Job::lose_silent_nodes() {
  std::vector<NodeId> silent;
  for (const NodeId& node_id : by_silence_) {
    const Node& node = nodes_.at(node_id);
    if (now_ - node.heard < lease()) break;
    out_->push_back(CloseConnection{node.connection});
    silent.push_back(node_id);
  }
  lose(silent, "lease",
       fmt::format("no message came from it for {:.1f} s",
                   static_cast<double>(rules_.lease_ms) / 1'000),
       lease());
}

void Job::lose_slow_nodes() {
  std::vector<NodeId> late;
  if (phase_ == Phase::kStopping && now_ >= round_.stop.deadline) {
    for (const std::size_t rank : round_.stop.unanswered)
      late.push_back(round_.members[rank].info.node_id);
  }
  if (num_ending_ > 0) {
    for (const auto& [node_id, node] : nodes_) {
      if (node.ending && now_ >= node.ending->until) late.push_back(node_id);
    }
  }
  if (finished()) return;
  for (const NodeId& node_id : late)
    out_->push_back(CloseConnection{nodes_.at(node_id).connection});
  lose(late, "agent", "it did not stop its workers in time");
}

void Job::tick(TimePoint now, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  lose_silent_nodes();
  release_held();
  stop_for_failures();
  check_scale_up();
  miss_overdue();
  lose_slow_nodes();
  if (phase_ != Phase::kWaiting) return;
  if (gathering_.last_call_ends) try_start();
  if (phase_ != Phase::kWaiting) return;
  if (!gathering_.last_call_ends && now >= gathering_.since + Duration{rules_.join_timeout_ms})
    return finish_for_missing_nodes();
  if (now >= next_announcement_) announce();
}

}  // namespace ddp::rendezvous
