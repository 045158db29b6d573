// How ddp-runs that are in different groups find into one.
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "launcher/replicas/job_replica.h"

namespace ddp::replicas {
namespace {

constexpr std::uint64_t kFirstTerm = 1;  // Of the member that has founded a group.
// One announcement of so many also goes to the ddp-runs whose agents are here: they may have to
// tell others where the coordinator is.
constexpr unsigned kAnnouncementsToAll = 10;
// A group that has had no leader for this long says nothing against another one. Nor does a member
// that has not answered for this long.
constexpr Duration kLeaderless{10'000};

}  // namespace

// This ddp-run has taken itself for the first of the job, or belongs to one that has.
void JobReplica::leave_group_for(MemberId group) {
  const bool held = std::exchange(office_, Office::kNone) == Office::kHeld;
  if (coordinator_ == at_) coordinator_.reset();
  begin(group);
  raft_->start(now_, false);
  if (held) events_.lost();
}

void JobReplica::announce(const HostPort& to, bool has_your_agent) {
  send(to, {.announcement = Announcement{.term = office_term_,
                                         .next_round = record_.next_round,
                                         .has_your_agent = has_your_agent}});
}

// To those that may look for the coordinator, and to a ddp-run that was started where the first one
// was and takes itself for the first.
void JobReplica::announce_to_others() {
  next_announcement_ = now_ + options_.announcement;
  const bool to_all = ++announcements_ % kAnnouncementsToAll == 0;
  for (const auto& [id, place] : places_) {
    const auto peer = peers_.find(id);
    const bool is_here = peer != peers_.end() && peer->second.is_here;
    if (id != own_ && (to_all || !is_here || first_store_)) announce(place, is_here);
  }
  if (options_.endpoint.port != 0 && options_.endpoint != at_) announce(options_.endpoint);
}

// The founder of a second group learns whether the job has begun in this one.
void JobReplica::tell_what_has_begun(const HostPort& to) {
  // If nobody leads it any more, a new one may begin the job.
  const bool has_ended = now_ - raft_->heard_leader() > kLeaderless;
  send(to, {.announcement = Announcement{.next_round = has_ended ? 0 : record_.next_round,
                                         .coordinates = false}});
}

void JobReplica::on_announcement(const ReplicaMessage& message) {
  const Announcement& announcement = *message.announcement;
  if (!announcement.coordinates) {
    if (!leads() || record_.next_round > 0) return;
    if (message.group != group_ && announcement.next_round > 0) return leave_group_for(0);
    const auto peer = peers_.find(message.from);
    if (peer != peers_.end()) peer->second.must_say_what_has_begun = false;
    return;
  }
  heed(message);
  if (announcement.next_round == 0 && group_ != 0) tell_what_has_begun(message.at);
}

void JobReplica::heed(const ReplicaMessage& message) {
  const Announcement& announcement = *message.announcement;
  if (message.group == group_) {
    if (office_ != Office::kNone || announcement.term < announced_term_) return;
  } else if (ended_groups_.contains(message.group)) {
    return;
  } else if (announcement.has_your_agent && announcement.next_round > 0) {
    // A ddp-run goes where its agent is. Else the group that the node has left could go on with an
    // old state, by this member's vote.
    ended_groups_.insert(group_);
    leave_group_for(message.group);
  } else {
    if (record_.next_round > 0) return;
    if (group_ != 0 && announcement.next_round == 0) return meet_rival(message);
    leave_group_for(message.group);
  }
  announced_term_ = announcement.term;
  if (coordinator_ == message.at) return;
  // The first coordinator is at the endpoint, where this node's agent has found it, perhaps by
  // another name.
  const bool is_known = !coordinator_ && !has_founded_ && message.from == message.group &&
                        announcement.term == kFirstTerm;
  coordinator_ = message.at;
  if (!is_known) events_.moved(message.at);
}

// The first ddp-run was started again while others elected its successor: two groups that have
// begun no round. One of them has to end, and it must be certain that it never begins a round after
// all. So the end is an entry of its log, like a round. If a round comes first, the end means
// nothing; a later leader applies the end before it begins anything. The ids decide which one it
// is, so that they never give way to each other.
void JobReplica::meet_rival(const ReplicaMessage& message) {
  if (!leads()) {
    if (coordinator_ && *coordinator_ != at_ && *coordinator_ != message.at)
      events_.send(*coordinator_, message);
    return;
  }
  if (group_ < message.group) return announce(message.at);
  tell_group(dump_json({{"gives_way_to",
                         {{"group", message.group},
                          {"host", message.at.host},
                          {"port", message.at.port},
                          {"term", message.announcement->term}}}}));
}

void JobReplica::give_way() {
  const Rival rival = *gives_way_to_;
  ended_groups_.insert(group_);
  leave_group_for(rival.group);
  announced_term_ = rival.term;
  coordinator_ = rival.at;
  events_.moved(rival.at);
}

// Before a group begins its first round, the ddp-runs of agents that were joined to an earlier
// coordinator say whether its group has begun one.
bool JobReplica::knows_all_have_begun_nothing() const {
  if (record_.next_round > 0) return true;
  return std::none_of(peers_.begin(), peers_.end(), [this](const auto& peer) {
    const Peer& each = peer.second;
    return each.is_here && each.must_say_what_has_begun && now_ - each.joined < kLeaderless;
  });
}

}  // namespace ddp::replicas
