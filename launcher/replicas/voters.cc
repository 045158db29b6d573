#include "launcher/replicas/voters.h"

#include <algorithm>
#include <cstddef>

namespace ddp::replicas {
namespace {

using Servers = std::vector<RaftMember::Server>;

// Those that vote already come before others.
std::set<MemberId> right_voters(const Servers& servers, MemberId own,
                                const std::set<MemberId>& alive, int wanted) {
  const std::size_t others = alive.size() - (alive.contains(own) ? 1 : 0);
  std::size_t target = std::min(static_cast<std::size_t>(std::max(wanted, 1)), others + 1);
  if (target % 2 == 0) --target;
  std::set<MemberId> voters{own};
  for (const bool votes : {true, false}) {
    for (const RaftMember::Server& server : servers) {
      if (voters.size() < target && server.votes == votes && alive.contains(server.id)) {
        voters.insert(server.id);
      }
    }
  }
  for (const MemberId id : alive) {
    if (voters.size() < target) voters.insert(id);
  }
  return voters;
}

// A new voter comes before a lost one goes. In between, one more must agree. But if the lost one
// was only cut off and another is lost while the change is under way, those that are left can
// decide when it is back. The other way round, the one that has just been lost would have to agree.
std::optional<VoterChange> wanted_change(const Servers& servers, MemberId own,
                                         const std::set<MemberId>& alive,
                                         const std::set<MemberId>& voters) {
  const auto removed = [&](bool votes, bool is_alive) -> std::optional<VoterChange> {
    for (const RaftMember::Server& server : servers) {
      const bool goes = server.id != own && !voters.contains(server.id);
      if (goes && server.votes == votes && alive.contains(server.id) == is_alive) {
        return VoterChange{.kind = VoterChange::Kind::kRemove, .id = server.id};
      }
    }
    return std::nullopt;
  };
  for (const bool is_alive : {false, true}) {
    if (const auto change = removed(false, is_alive)) return change;
  }
  // One at a time: of two lost ones, the first goes before the second's successor comes.
  const auto voting = std::count_if(servers.begin(), servers.end(),
                                    [](const RaftMember::Server& server) { return server.votes; });
  if (static_cast<std::size_t>(voting) > voters.size()) {
    if (const auto change = removed(true, false)) return change;
  }
  for (const RaftMember::Server& server : servers) {
    if (!server.votes) return VoterChange{.kind = VoterChange::Kind::kGiveVote, .id = server.id};
  }
  for (const MemberId id : voters) {
    const bool is_in = std::any_of(servers.begin(), servers.end(),
                                   [id](const auto& server) { return server.id == id; });
    if (!is_in) return VoterChange{.kind = VoterChange::Kind::kAdd, .id = id};
  }
  for (const bool is_alive : {false, true}) {
    if (const auto change = removed(true, is_alive)) return change;
  }
  return std::nullopt;
}

}  // namespace

std::optional<VoterChange> next_voter_change(const std::vector<RaftMember::Server>& servers,
                                             MemberId own, const std::set<MemberId>& alive,
                                             const std::set<MemberId>& answering, int wanted) {
  const auto change = wanted_change(servers, own, alive, right_voters(servers, own, alive, wanted));
  if (!change) return std::nullopt;
  std::size_t left = 0;
  std::size_t answer = 0;
  for (const RaftMember::Server& server : servers) {
    const bool is_meant = server.id == change->id;
    // libraft gives a vote only to a member that has answered with the whole log.
    const bool gets_vote = is_meant && change->kind == VoterChange::Kind::kGiveVote;
    const bool goes = is_meant && change->kind == VoterChange::Kind::kRemove;
    if (goes || !(server.votes || gets_vote)) continue;
    ++left;
    if (server.id == own || gets_vote || answering.contains(server.id)) ++answer;
  }
  return 2 * answer > left ? change : std::nullopt;
}

}  // namespace ddp::replicas
