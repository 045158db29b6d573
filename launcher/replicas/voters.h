#pragma once

#include <optional>
#include <set>
#include <vector>

#include "launcher/replicas/raft_member.h"

namespace ddp::replicas {

// The next step towards the right voters.
struct VoterChange {
  enum class Kind { kAdd, kGiveVote, kRemove };
  Kind kind = Kind::kAdd;
  MemberId id = 0;

  friend bool operator==(const VoterChange&, const VoterChange&) = default;
};

// Which members should vote, as far as the leader `own` sees. `servers` is the group now, `alive`
// who could vote, `answering` who answers the leader right now. The number of voters is odd and at
// most `wanted`: with two, the loss of either would stop the job, so one alone is better. Members
// without a connection lose their vote first, because only the majority of those that vote can
// decide. Nothing if all is well, or if most of the voters that the change would leave do not
// answer: they would have to agree to it, and a change that waits for them can never be taken back.
//
// What this makes of it: with N voters, (N - 1) / 2 may be lost at once, and any number one after
// the other as long as there are others to take their place.
std::optional<VoterChange> next_voter_change(const std::vector<RaftMember::Server>& servers,
                                             MemberId own, const std::set<MemberId>& alive,
                                             const std::set<MemberId>& answering, int wanted);

}  // namespace ddp::replicas
