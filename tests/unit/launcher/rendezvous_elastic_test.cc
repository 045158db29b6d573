// Nodes that join while a round runs, or ask for a place that may be free; one rule per test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Harness = CoordinatorHarness;

// ---- scale-up ----

// Nodes "a" and "b" in round 0 of a job of two to four.
struct Growing : Harness {
  explicit Growing(std::int64_t scale_up_ms = 5'000) : limit(scale_up_ms) {
    a = join(member("a"));
    b = join(member("b"));
    pass(Duration{3'000});
    EXPECT_EQ(rounds.size(), 1u);
  }
  wire::Join member(const std::string& name) const {
    wire::Join join = node(name, 2, 4, 0);
    join.rules.scale_up_ms = limit;
    return join;
  }
  std::int64_t limit;
  ConnectionId a = 0;
  ConnectionId b = 0;
};

TEST(ScaleUp, TheRoundChangesWhenAllHaveCommitted) {
  Growing h;
  const auto c = h.join(h.member("c"));
  EXPECT_EQ(h.last<wire::CommitRound>(h.a).round, 0);
  EXPECT_EQ(h.last<wire::CommitRound>(h.b).deadline_ms, 5'000);
  EXPECT_EQ(h.count<wire::CommitRound>(c), 0u);
  EXPECT_THAT(h.last<wire::Waiting>(c).text, HasSubstr("as soon as the workers have committed"));
  h.say(h.a, wire::NodeCommitted{0, 12});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  h.say(h.b, wire::NodeCommitted{0, 12});
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "node c joined");
  h.say(h.a, wire::Stopped{0, {}});
  h.say(h.b, wire::Stopped{0, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(c).members.size(), 3u);
  EXPECT_EQ(h.last<wire::RoundStart>(c).restarts, 0);
}

TEST(ScaleUp, TheDeadlineMakesItHappenAnyway) {
  Growing h;
  h.join(h.member("c"));
  h.say(h.a, wire::NodeCommitted{0, 12});
  h.pass(Duration{4'500});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  h.pass(Duration{500});
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "node c joined");
}

TEST(ScaleUp, NodesThatComeMeanwhileComeInTogether) {
  Growing h;
  h.join(h.member("c"));
  const auto d = h.join(h.member("d"));
  EXPECT_EQ(h.count<wire::CommitRound>(h.a), 1u);
  h.say(h.a, wire::NodeCommitted{0, 12});
  h.say(h.b, wire::NodeCommitted{0, 12});
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "node c and 1 more joined");
  h.say(h.a, wire::Stopped{0, {}});
  h.say(h.b, wire::Stopped{0, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(d).members.size(), 4u);
}

TEST(ScaleUp, ANodeThatIsGoneAgainChangesNothing) {
  Growing h;
  const auto c = h.join(h.member("c"));
  h.disconnect(c);
  h.say(h.a, wire::NodeCommitted{0, 12});
  h.say(h.b, wire::NodeCommitted{0, 12});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
}

TEST(ScaleUp, SuccessEndsIt) {
  Growing h;
  const auto c = h.join(h.member("c"));
  h.say(h.a, wire::Succeeded{0});
  h.pass(Duration{5'000});
  EXPECT_EQ(h.count<wire::Stop>(h.b), 0u);
  EXPECT_THAT(h.last<wire::Waiting>(c).text, HasSubstr("spare"));
}

TEST(ScaleUp, AFailureMeanwhileIsAFailure) {
  Growing h;
  h.join(h.member("c"));
  h.fail(h.a, 0, 9);
  h.say(h.a, wire::Stopped{0, {}});
  h.say(h.b, wire::Stopped{0, {}});
  EXPECT_EQ(h.finished.at(0).exit_code, 137);
}

TEST(ScaleUp, CommitsOfAnotherRoundOrOfNobodyDoNotCount) {
  Growing h;
  h.say(h.a, wire::NodeCommitted{0, 12});
  const auto c = h.join(h.member("c"));
  h.say(h.a, wire::NodeCommitted{1, 12});
  h.say(c, wire::NodeCommitted{0, 12});
  h.say(h.b, wire::NodeCommitted{0, 12});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
}

// ---- node ranks of nodes that may be dead ----

wire::Join with_rank(const std::string& id, const std::string& host, int rank) {
  wire::Join join = Harness::node(id, 2, 2, 3);
  join.host = host;
  join.node_rank = rank;
  return join;
}

TEST(NodeRank, ASuccessorOnTheSameHostTakesTheRankOfASilentNode) {
  Harness h;
  const auto a = h.join(with_rank("a", "n0", 0));
  const auto b = h.join(with_rank("b", "n1", 1));
  h.pass(Duration{1'000}, {b});
  const auto b2 = h.join(with_rank("b2", "n1", 1));
  EXPECT_EQ(h.count<wire::Welcome>(b2), 0u) << "b may be alive";
  EXPECT_EQ(h.count<wire::Refused>(b2), 0u);
  h.pass(Duration{500}, {b, b2});
  EXPECT_EQ(h.count<wire::Welcome>(b2), 1u);
  EXPECT_TRUE(h.closed.contains(b));
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(b2).group_rank, 1);
}

TEST(NodeRank, OfANodeThatIsAliveItIsRefused) {
  Harness h;
  h.join(with_rank("a", "n0", 0));
  const auto b = h.join(with_rank("b", "n1", 1));
  const auto b2 = h.join(with_rank("b2", "n1", 1));
  h.pass(Duration{2'000}, {b2});
  EXPECT_THAT(h.last<wire::Refused>(b2).message, HasSubstr("--node-rank 1 is taken by n1"));
  EXPECT_FALSE(h.closed.contains(b));
}

TEST(NodeRank, AnotherHostIsRefusedAtOnce) {
  Harness h;
  h.join(with_rank("a", "n0", 0));
  EXPECT_EQ(h.count<wire::Refused>(h.join(with_rank("x", "n9", 0))), 1u);
}

TEST(NodeRank, WhoWaitsForARankIsToldTheEnd) {
  Harness h;
  h.join(with_rank("a", "n0", 0));
  h.join(with_rank("b", "n1", 1));
  const auto b2 = h.join(with_rank("b2", "n1", 1));
  h.take(h.core.end_job(h.now, "job", 130, "interrupted"));
  EXPECT_THAT(h.last<wire::Refused>(b2).message, HasSubstr("is over: interrupted"));
  EXPECT_FALSE(h.core.next_deadline());
}

// ---- waiting ----

TEST(Waiting, ANodeThatLeavesDoesNotStartTheJoinTimeoutAnew) {
  Harness h;
  h.join(Harness::node("a", 3, 3));
  const auto b = h.join(Harness::node("b", 3, 3));
  h.pass(Duration{50'000});
  h.say(b, wire::Leave{""});
  h.pass(Duration{9'500});
  EXPECT_TRUE(h.finished.empty());
  h.pass(Duration{500});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, kExitJoinTimeout);
}

TEST(Waiting, InALargeJobNewsAreToldOnceASecond) {
  Harness h;
  std::vector<ConnectionId> nodes;
  for (int i = 0; i < 200; ++i) {
    nodes.push_back(h.join(Harness::node("n" + std::to_string(i), 300, 300)));
  }
  EXPECT_LE(h.count<wire::Waiting>(nodes.front()), 17u);
  h.pass(Duration{1'000});
  const auto told = h.last<wire::Waiting>(nodes.back());
  EXPECT_EQ(told.have, 200);
  EXPECT_EQ(told.hosts.size(), 64u) << "the first, as people count";
  EXPECT_THAT(std::vector<std::string>(told.hosts.begin(), told.hosts.begin() + 3),
              ElementsAre("n0", "n1", "n2"));
}

}  // namespace
}  // namespace ddp::rendezvous
