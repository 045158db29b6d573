// Nodes that the job does without; one rule per test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "launcher/rendezvous/node_failures.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Nodes "a" and "b" in round 0 of a job of `min` to two nodes.
struct Failing : CoordinatorHarness {
  explicit Failing(int min = 2, int limit = 3) : least(min), most(limit) {
    a = join(member("a"));
    b = join(member("b"));
    EXPECT_THAT(rounds, ElementsAre(0));
  }
  wire::Join member(const std::string& name, const std::string& id = "") const {
    wire::Join join = node(name, least, 2, 100);
    join.rules.max_node_failures = most;
    if (!id.empty()) join.node_id = id;
    return join;
  }
  // A worker of b fails, and the next round begins.
  void fail_b() {
    const Round round = rounds.back();
    fail(b, round, 9);
    say(a, wire::Stopped{round, {}});
    if (!closed.contains(b)) say(b, wire::Stopped{round, {}});
    pass(Duration{40'000});
  }
  std::vector<std::string> hosts_of_round(ConnectionId member) const {
    std::vector<std::string> hosts;
    for (const wire::Member& info : last<wire::RoundStart>(member).members)
      hosts.push_back(info.host);
    return hosts;
  }
  JobStatus status() const { return core.status(now).at(0); }

  int least;
  int most;
  ConnectionId a = 0;
  ConnectionId b = 0;
};

TEST(LeftOut, ASpareTakesThePlaceOfANodeThatFailedThreeTimes) {
  Failing h;
  const auto c = h.join(h.member("c"));
  h.fail_b();
  h.fail_b();
  EXPECT_FALSE(h.closed.contains(h.b));
  EXPECT_THAT(h.hosts_of_round(h.a), ElementsAre("a", "b"));
  EXPECT_THAT(h.status().left_out, IsEmpty());
  h.fail_b();
  EXPECT_TRUE(h.closed.contains(h.b));
  const auto refused = h.last<wire::Refused>(h.b);
  EXPECT_TRUE(refused.left_out);
  EXPECT_EQ(refused.message,
            "job job: node b is left out: it failed 3 times within an hour (--max-node-failures "
            "3), the last time: rank 1 on b failed: signal 9 (SIGKILL)");
  EXPECT_THAT(h.hosts_of_round(c), ElementsAre("a", "c"));
  EXPECT_EQ(h.last<wire::RoundStart>(c).restarts, 3);
  EXPECT_THAT(h.last<wire::RoundStart>(c).reason, HasSubstr("; node b is left out; restart 3"));
  ASSERT_EQ(h.status().left_out.size(), 1u);
  EXPECT_EQ(h.status().left_out[0].host, "b");
  EXPECT_THAT(h.status().left_out[0].reason, HasSubstr("failed 3 times within an hour"));
}

TEST(LeftOut, ANodeThatIsNeededStays) {
  Failing h;
  for (int i = 0; i < 5; ++i) h.fail_b();
  EXPECT_THAT(h.rounds, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(h.hosts_of_round(h.b), ElementsAre("a", "b"));
  // A spare comes while the round runs, which goes on. At the next change it takes the place.
  const auto c = h.join(h.member("c"));
  EXPECT_FALSE(h.closed.contains(h.b));
  h.fail(h.a, 5, 9);
  h.say(h.a, wire::Stopped{5, {}});
  h.say(h.b, wire::Stopped{5, {}});
  h.pass(Duration{40'000});
  EXPECT_THAT(h.hosts_of_round(c), ElementsAre("a", "c"));
}

TEST(LeftOut, AnElasticJobGoesOnWithoutIt) {
  Failing h(1);
  h.fail_b();
  h.fail_b();
  h.fail_b();
  EXPECT_TRUE(h.closed.contains(h.b));
  EXPECT_THAT(h.hosts_of_round(h.a), ElementsAre("a"));
}

TEST(LeftOut, AnHourAfterAFailureItIsForgiven) {
  Failing h(1);
  h.fail_b();
  h.fail_b();
  h.pass(Duration{3'600'000});
  h.fail_b();
  EXPECT_FALSE(h.closed.contains(h.b));
  h.fail_b();
  h.fail_b();
  EXPECT_TRUE(h.closed.contains(h.b));
  const auto again = h.join(h.member("b", "b2"));
  EXPECT_TRUE(h.last<wire::Refused>(again).left_out);
  h.pass(Duration{3'600'000});
  const auto later = h.join(h.member("b", "b3"));
  EXPECT_EQ(h.count<wire::Refused>(later), 0u);
  EXPECT_THAT(h.status().left_out, IsEmpty());
}

TEST(LeftOut, WithoutALimitNobodyIs) {
  Failing h(1, 0);
  for (int i = 0; i < 5; ++i) h.fail_b();
  EXPECT_FALSE(h.closed.contains(h.b));
  EXPECT_THAT(h.hosts_of_round(h.b), ElementsAre("a", "b"));
}

TEST(LeftOut, ALostNodeCountsAndItsNewAgentIsRefused) {
  Failing h(1);
  for (int i = 0; i < 3; ++i) {
    h.disconnect(h.b);
    h.say(h.a, wire::Stopped{h.rounds.back(), {}});
    h.b = h.join(h.member("b", i < 2 ? "b" : "b-again"));
    if (i == 2) break;
    h.pass(Duration{1'000});
    h.say(h.a, wire::NodeCommitted{h.rounds.back(), 1});
    h.say(h.a, wire::Stopped{h.rounds.back(), {}});
    h.pass(Duration{40'000});
    ASSERT_THAT(h.hosts_of_round(h.a), ElementsAre("a", "b")) << i;
  }
  EXPECT_THAT(h.last<wire::Refused>(h.b).message,
              HasSubstr("the last time: node b was lost: its connection closed"));
}

// One of two that have fallen silent has failed too often. With the loss of the other one the next
// round begins.
TEST(LeftOut, WhoFellSilentTogetherIsGoneBeforeTheNextRound) {
  for (const int most : {1, 0}) {
    CoordinatorHarness h;
    const auto member = [&](const std::string& name) {
      wire::Join join = CoordinatorHarness::node(name, 1, 3, 9);
      join.rules.max_node_failures = most;
      return join;
    };
    const auto a = h.join(member("a"));
    const auto b = h.join(member("b"));
    const auto c = h.join(member("c"));
    h.fail(b, 0, 9);
    h.say(a, wire::Stopped{0, {}});
    h.say(c, wire::Heartbeat{});
    h.say(b, wire::Stopped{0, {}});
    h.now += Duration{4'000};
    h.say(a, wire::Heartbeat{});
    EXPECT_THAT(h.rounds, ElementsAre(0));
    h.now += Duration{1'000};
    h.take(h.core.on_tick(h.now));
    EXPECT_TRUE(h.closed.contains(b) && h.closed.contains(c));
    EXPECT_THAT(h.rounds, ElementsAre(0, 1));
    EXPECT_EQ(h.last<wire::RoundStart>(a).members.size(), 1u);
    EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 1);
    h.pass(Duration{10'000}, {b, c});
    EXPECT_THAT(h.rounds, ElementsAre(0, 1)) << "nobody of round 1 is lost";
  }
}

// While the next round waits for its back-off, nodes beyond --nnodes are in.
TEST(LeftOut, NoRoundBeginsWithASpareThatFellSilent) {
  CoordinatorHarness h;
  std::vector<ConnectionId> nodes;
  for (const char* const name : {"a", "b", "c", "d"})
    nodes.push_back(h.join(CoordinatorHarness::node(name, 1, 2, 9)));
  EXPECT_THAT(h.rounds, ElementsAre(0));
  h.now += Duration{4'000};
  for (const Round round : {0, 1}) {
    h.fail(nodes[0], round, 9);
    for (const std::size_t i : {0, 1}) h.say(nodes[i], wire::Stopped{round, {}});
  }
  EXPECT_THAT(h.rounds, ElementsAre(0, 1)) << "the second restart waits 100 ms";
  h.disconnect(nodes[1]);
  h.now += Duration{1'000};
  h.take(h.core.on_tick(h.now));
  EXPECT_THAT(h.rounds, ElementsAre(0, 1, 2));
  EXPECT_EQ(h.last<wire::RoundStart>(nodes[0]).members.size(), 1u);
}

TEST(LeftOut, ConsequencesOfAnotherFailureDoNotCount) {
  Failing h(1);
  for (int i = 0; i < 4; ++i) {
    const Round round = h.rounds.back();
    h.fail(h.b, round, 0, kExitCollectiveFailed, true);
    h.fail(h.a, round, 9);
    h.say(h.a, wire::Stopped{round, {}});
    h.say(h.b, wire::Stopped{round, {}});
    h.pass(Duration{40'000});
  }
  EXPECT_FALSE(h.closed.contains(h.b));
  EXPECT_TRUE(h.closed.contains(h.a));  // The cause.
}

TEST(LeftOut, NodesOfOneHostAreToldApartByTheirRanks) {
  const auto member = [](const std::string& id, int rank) {
    wire::Join join = CoordinatorHarness::node("host", 1, 2, 100);
    join.node_id = id;
    join.node_rank = rank;
    return join;
  };
  for (const bool ranks : {true, false}) {
    CoordinatorHarness h;
    const auto a = h.join(member("a", ranks ? 0 : -1));
    auto b = h.join(member("b", ranks ? 1 : -1));
    for (int i = 0; i < 3; ++i) {
      const Round round = h.rounds.back();
      h.fail(b, round, 9);
      h.say(a, wire::Stopped{round, {}});
      h.say(b, wire::Stopped{round, {}});
      h.pass(Duration{40'000});
    }
    EXPECT_TRUE(h.closed.contains(b));
    EXPECT_FALSE(h.closed.contains(a));
    b = h.join(member("b2", ranks ? 1 : -1));
    EXPECT_EQ(h.count<wire::Refused>(b), ranks ? 1u : 0u);
  }
}

TEST(LeftOut, AnotherCoordinatorGoesOnCounting) {
  CoordinatorHarness first;
  std::vector<JobRecord> records;
  const auto keep = [&](std::vector<Action> actions) {
    for (const Action& action : actions) {
      if (const auto* persist = std::get_if<Persist>(&action)) records.push_back(persist->record);
    }
    first.take(std::move(actions));
  };
  const auto member = [](const std::string& name) {
    return CoordinatorHarness::node(name, 1, 2, 100);
  };
  const auto a = first.join(member("a"));
  const auto b = first.join(member("b"));
  for (Round round = 0; round < 2; ++round) {
    first.fail(b, round, 9);
    first.say(a, wire::Stopped{round, {}});
    keep(first.core.on_message(first.now, b, wire::Stopped{round, {}}, ""));
    first.now += Duration{1'000};
    keep(first.core.on_tick(first.now));
  }
  ASSERT_FALSE(records.empty());
  ASSERT_EQ(records.back().node_failures.size(), 2u);
  EXPECT_EQ(records.back().node_failures[0].age_ms, 2'000);
  EXPECT_EQ(records.back().node_failures[1].age_ms, 1'000);

  CoordinatorHarness second;
  second.restore(nlohmann::json(records.back()).get<JobRecord>());
  const auto a2 = second.join(member("a"));
  const auto b2 = second.join(member("b"));
  second.pass(Duration{10'000});
  ASSERT_FALSE(second.rounds.empty());
  second.fail(b2, second.rounds.back(), 9);
  second.say(a2, wire::Stopped{second.rounds.back(), {}});
  second.say(b2, wire::Stopped{second.rounds.back(), {}});
  second.pass(Duration{40'000});
  EXPECT_TRUE(second.last<wire::Refused>(b2).left_out);
  EXPECT_THAT(second.last<wire::Refused>(b2).message, HasSubstr("failed 3 times"));
}

TEST(LeftOut, ARunningRoundIsNotDisturbed) {
  Failing h;
  for (int i = 0; i < 3; ++i) h.fail_b();
  h.join(h.member("c"));
  // b, which was needed, has only lost its connection.
  wire::Join again = h.member("b");
  again.last_round = again.running_round = h.rounds.back();
  again.group_rank = 1;
  again.members = h.last<wire::RoundStart>(h.b).members;
  const auto b = h.join(again);
  EXPECT_EQ(h.count<wire::Refused>(b), 0u);
  EXPECT_EQ(h.count<wire::Stop>(h.a), 3u);
}

TEST(LeftOut, ANodeWhoseHealthCheckFailedIsRefusedAndTheOthersLearnWhy) {
  CoordinatorHarness h;
  const auto a = h.join(CoordinatorHarness::node("a", 2, 2));
  wire::Join bad = CoordinatorHarness::node("b", 2, 2);
  bad.unfit = "the disk is full";
  const auto b = h.join(bad);
  EXPECT_EQ(h.last<wire::Refused>(b).message,
            "job job: node b is left out: its health check failed: the disk is full");
  EXPECT_TRUE(h.last<wire::Refused>(b).left_out);
  EXPECT_TRUE(h.closed.contains(b));
  EXPECT_THAT(h.last<wire::Waiting>(a).text,
              HasSubstr("; left out: b: its health check failed: the disk is full"));
  EXPECT_THAT(h.status_json(), HasSubstr("its health check failed: the disk is full"));
  const auto c = h.join(CoordinatorHarness::node("c", 2, 2));
  EXPECT_EQ(h.count<wire::RoundStart>(c), 1u);
  EXPECT_THAT(h.last<wire::RoundStart>(c).reason, Not(HasSubstr("left out")));
}

TEST(LeftOut, TheReportNamesThem) {
  Failing h;
  wire::Join bad = h.member("c");
  bad.unfit = "the disk is full";
  h.join(bad);
  h.fail(h.b, 0, 0, kExitInvalidValue);
  h.say(h.a, wire::Stopped{0, {}});
  h.say(h.b, wire::Stopped{0, {}});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_THAT(h.finished[0].report,
              HasSubstr("\nnode c was left out: its health check failed: the disk is full\n"));
}

TEST(LeftOut, AJobThatLacksNodesNamesThemAtItsEnd) {
  CoordinatorHarness h;
  h.join(CoordinatorHarness::node("a", 2, 2));
  wire::Join bad = CoordinatorHarness::node("b", 2, 2);
  bad.unfit = "the disk is full";
  h.join(bad);
  h.pass(Duration{61'000});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, kExitJoinTimeout);
  EXPECT_THAT(h.finished[0].summary, HasSubstr("left out: b: its health check failed"));
}

// The record is stored for each round: of 1,000 failures, only those that decide are in it.
TEST(NodeFailures, KeepsOfANodeWhatDecides) {
  NodeFailures failures(3);
  const TimePoint now{Duration{1'000}};
  for (int i = 0; i < 1'000; ++i) {
    failures.add(now, {.node_id = "new" + std::to_string(i), .host = i % 2 == 0 ? "a" : "b"},
                 "failure " + std::to_string(i));
  }
  const auto records = failures.records(now);
  ASSERT_EQ(records.size(), 6u);
  EXPECT_EQ(records[3].text, "");
  EXPECT_EQ(records[4].text, "failure 998");
  const NodeFailures::Count a = failures.of(now, {.node_id = "x", .host = "a"});
  EXPECT_EQ(a.failures, 3);
  EXPECT_EQ(a.last, "failure 998");
  NodeFailures none(0);
  none.add(now, {.node_id = "a", .host = "a"}, "failure");
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace ddp::rendezvous
