// How a round of an earlier coordinator goes on under this one: its agents have kept their workers
// running and say so when they join.
#include <algorithm>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "launcher/rendezvous/job.h"
#include "launcher/rendezvous/report.h"

namespace ddp::rendezvous {

// Whether the join's description of its round is possible for this job.
bool Job::is_world(const wire::Join& join) const {
  const auto count = static_cast<int>(join.members.size());
  if (count < rules_.min_nodes || count > rules_.max_nodes) return false;
  if (join.group_rank < 0 || join.group_rank >= count) return false;
  if (join.members[static_cast<std::size_t>(join.group_rank)].node_id != join.node_id) return false;
  std::set<NodeId> nodes;
  std::int64_t next_rank = 0;
  for (const wire::Member& member : join.members) {
    if (member.first_rank != next_rank || member.nproc < 1 || member.nproc > 65'536) return false;
    if (!nodes.insert(member.node_id).second) return false;
    next_rank += member.nproc;
    if (next_rank > (std::int64_t{1} << 30)) return false;
  }
  return true;
}

// Whether the round that runs on this node goes on. It does if no later round is known and this
// coordinator has begun none.
bool Job::returns_to_round(const wire::Join& join) {
  if (!is_world(join)) return false;
  const Round round = join.running_round;
  const bool newest = round == next_round_ - 1;
  if (phase_ == Phase::kWaiting && round_.number == kNoRound) return newest;
  if (is_running() && round_.is_adopted && round > round_.number) return newest;
  if (round != round_.number || !is_running()) return false;
  const Member* member = member_of(join.node_id);
  if (member == nullptr || member->info.first_rank !=
                               join.members[static_cast<std::size_t>(join.group_rank)].first_rank) {
    return false;
  }
  // A node that was lost after it succeeded still counts as succeeded.
  return member->presence == Member::Presence::kAwaited ||
         (member->presence == Member::Presence::kLost && member->succeeded);
}

void Job::come_back(const NodeId& node_id) {
  if (nodes_.at(node_id).join.running_round != round_.number) return adopt(node_id);
  Member& member = *member_of(node_id);
  member.presence = Member::Presence::kIn;
  member.node_rank = nodes_.at(node_id).join.node_rank;
  round_.recovery.awaited.erase(rank_of(member));
  check_recovered();
}

void Job::adopt(const NodeId& node_id) {
  const wire::Join join = nodes_.at(node_id).join;
  // If two rounds both claim to go on, the older one was left behind.
  std::vector<NodeId> left_behind;
  for (const Member& member : round_.members) {
    if (is_running() && member.presence == Member::Presence::kIn) {
      left_behind.push_back(member.info.node_id);
    }
  }
  for (const NodeId& other : left_behind) order_end_of(round_.number, other);
  phase_ = Phase::kRecovering;
  earlier_.loss_to_charge = false;
  std::vector<Member> members;
  for (const wire::Member& info : join.members) {
    Member member;
    member.info = info;
    member.presence = Member::Presence::kAwaited;
    members.push_back(std::move(member));
  }
  begin_round(join.running_round, std::move(members));
  round_.is_adopted = true;
  Member& own = round_.members[static_cast<std::size_t>(join.group_rank)];
  own.presence = Member::Presence::kIn;
  own.node_rank = join.node_rank;
  round_.recovery = {.until = now_ + return_limit()};
  std::vector<NodeId> without;
  for (const Member& member : round_.members) {
    if (member.presence != Member::Presence::kAwaited) continue;
    round_.recovery.awaited.insert(rank_of(member));
    if (nodes_.contains(member.info.node_id)) without.push_back(member.info.node_id);
  }
  if (!without.empty()) return miss(without, "its workers ended while the rendezvous was away");
  check_recovered();
}

// What the workers had told each other was in the store of the earlier coordinator. So they will
// never meet in this round.
void Job::end_meeting() {
  if (!is_running()) return;
  earlier_.loss_to_charge = true;
  begin_stop("the rendezvous was lost before the workers had met", false);
}

std::optional<Silence> Job::silence_of(const Member& member) const {
  return options_.silence_of ? options_.silence_of(member.info.node_id) : std::nullopt;
}

TimePoint Job::recovery_deadline() const {
  TimePoint deadline = round_.recovery.until;
  if (!options_.silence_of) return deadline;
  for (const std::size_t rank : round_.recovery.awaited) {
    const auto silence = silence_of(round_.members[rank]);
    if (silence && silence->lost_from) deadline = std::min(deadline, *silence->lost_from);
  }
  return deadline;
}

void Job::miss_overdue() {
  if (phase_ != Phase::kRecovering || now_ < recovery_deadline()) return;
  std::vector<NodeId> missing;
  for (const std::size_t rank : round_.recovery.awaited) {
    Member& member = round_.members[rank];
    const auto silence = silence_of(member);
    const bool has_ended = silence && silence->lost_from && now_ >= *silence->lost_from;
    if (now_ < round_.recovery.until && !has_ended) continue;
    member.gone_since = silence ? silence->since : round_.recovery.until - return_limit();
    missing.push_back(member.info.node_id);
  }
  miss(missing, "it did not come back after the rendezvous was lost");
}

// Marks members as missing from the round.
void Job::miss(const std::vector<NodeId>& node_ids, const std::string& why) {
  for (const NodeId& node_id : node_ids) {
    Member& member = *member_of(node_id);
    if (member.presence != Member::Presence::kAwaited) continue;
    member.presence = Member::Presence::kLost;
    round_.recovery.awaited.erase(rank_of(member));
    wire::Failure failure;
    failure.kind = "agent";
    failure.exit_code = kExitNodeLost;
    failure.message = why;
    record(std::move(failure), member, now_);
  }
  if (!round_.failures.empty()) begin_stop(describe(root()), true);
}

void Job::check_recovered() {
  if (phase_ != Phase::kRecovering || !round_.recovery.awaited.empty()) return;
  phase_ = Phase::kRunning;
  check_all_succeeded();
  if (has_room() && !newcomers().empty()) begin_scale_up();
}

}  // namespace ddp::rendezvous
