// Which members should vote.
#include "launcher/replicas/voters.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/replicas/raft_member.h"

namespace ddp::replicas {
namespace {

using Kind = VoterChange::Kind;
using Server = RaftMember::Server;

constexpr MemberId kOwn = 1;

struct VotersCase {
  std::string name;
  std::vector<Server> servers;
  std::set<MemberId> alive;
  std::set<MemberId> answering;
  std::optional<VoterChange> change;
};

class Voters : public ::testing::TestWithParam<VotersCase> {};

TEST_P(Voters, Next) {
  const VotersCase& param = GetParam();
  EXPECT_EQ(next_voter_change(param.servers, kOwn, param.alive, param.answering, 3), param.change);
}

INSTANTIATE_TEST_SUITE_P(
    Of, Voters,
    ::testing::Values(
        VotersCase{"OneNode", {{1, true}}, {1}, {}, std::nullopt},
        VotersCase{"TwoNodes", {{1, true}}, {1, 2}, {2}, std::nullopt},
        VotersCase{"AThirdNode", {{1, true}}, {1, 2, 3}, {}, VoterChange{Kind::kAdd, 2}},
        VotersCase{
            "AnAddedOne", {{1, true}, {2, false}}, {1, 2, 3}, {}, VoterChange{Kind::kGiveVote, 2}},
        VotersCase{"TwoVoters", {{1, true}, {2, true}}, {1, 2, 3}, {2}, VoterChange{Kind::kAdd, 3}},
        VotersCase{
            "AllIsWell", {{1, true}, {2, true}, {3, true}}, {1, 2, 3, 4}, {2, 3}, std::nullopt},
        VotersCase{"OneIsLost",
                   {{1, true}, {2, true}, {3, true}},
                   {1, 2, 4},
                   {2},
                   VoterChange{Kind::kAdd, 4}},
        VotersCase{"ItsSuccessorIsIn",
                   {{1, true}, {2, true}, {3, true}, {4, false}},
                   {1, 2, 4},
                   {2},
                   VoterChange{Kind::kGiveVote, 4}},
        VotersCase{"ItsSuccessorVotes",
                   {{1, true}, {2, true}, {3, true}, {4, true}},
                   {1, 2, 4},
                   {2},
                   VoterChange{Kind::kRemove, 3}},
        VotersCase{"ItsSuccessorIsLostFirst",
                   {{1, true}, {2, true}, {3, true}, {4, false}},
                   {1, 2},
                   {2},
                   VoterChange{Kind::kRemove, 4}},
        VotersCase{"OneOfThreeNodesIsLost",
                   {{1, true}, {2, true}, {3, true}},
                   {1, 2},
                   {2},
                   VoterChange{Kind::kRemove, 3}},
        VotersCase{
            "ThenOneIsEnough", {{1, true}, {2, true}}, {1, 2}, {2}, VoterChange{Kind::kRemove, 2}},
        // The two that would be left must both agree.
        VotersCase{"NobodyAnswers", {{1, true}, {2, true}, {3, true}}, {1, 2, 4}, {}, std::nullopt},
        // Alone, this one can decide.
        VotersCase{"TheSecondOfTwoIsLost",
                   {{1, true}, {2, true}},
                   {1},
                   {},
                   VoterChange{Kind::kRemove, 2}}),
    [](const auto& test) { return test.param.name; });

// With both successors in, one more loss before the lost ones go would leave no majority.
TEST(VotersOfFive, OfTwoLostOnesTheFirstGoesBeforeTheSecondsSuccessorComes) {
  const std::vector<Server> servers{{1, true}, {2, true}, {3, true},
                                    {4, true}, {5, true}, {6, true}};
  EXPECT_EQ(next_voter_change(servers, kOwn, {1, 2, 3, 6, 7}, {2, 3, 6}, 5),
            (VoterChange{Kind::kRemove, 4}));
}

}  // namespace
}  // namespace ddp::replicas
