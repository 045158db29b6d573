// Rounds that continue under another coordinator or over another connection; one rule per test.
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Harness = CoordinatorHarness;

// ---- rounds under another coordinator ----

// A join with round `round`, which runs on the nodes "a" and "b".
wire::Join running(const std::string& name, Round round, int restarts = 0, int max_restarts = 3) {
  wire::Join join = Harness::node(name, 1, 2, max_restarts);
  join.last_round = round;
  join.restarts = restarts;
  join.running_round = round;
  join.group_rank = name == "a" ? 0 : 1;
  join.members = {{"a", "a", "10.0.0.1", 2, 0}, {"b", "b", "10.0.0.2", 1, 2}};
  return join;
}

TEST(Takeover, ARoundGoesOnWhenAllItsNodesAreBack) {
  Harness h;
  const auto a = h.join(running("a", 4, 1));
  EXPECT_THAT(h.status_json(), HasSubstr("\"state\": \"recovering\""));
  h.pass(Duration{3'000});
  const auto b = h.join(running("b", 4, 1));
  EXPECT_THAT(h.status_json(), HasSubstr("\"state\": \"running\""));
  h.pass(Duration{60'000});
  EXPECT_TRUE(h.rounds.empty());
  EXPECT_EQ(h.count<wire::Stop>(a), 0u);
  // It is a round like any other from now on.
  h.fail(b, 4, 9);
  EXPECT_EQ(h.last<wire::Stop>(a).round, 4);
  h.say(a, wire::Stopped{4, {}});
  h.say(b, wire::Stopped{4, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(a).round, 5);
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 2) << "the failure, and not the rendezvous";
}

TEST(Takeover, ItsSuccessIsTheJobs) {
  Harness h;
  const auto a = h.join(running("a", 4));
  h.say(a, wire::Succeeded{4});
  EXPECT_TRUE(h.finished.empty());
  const auto b = h.join(running("b", 4));
  h.say(b, wire::Succeeded{4});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].summary, "3 workers on 2 nodes succeeded in round 4 after 0 restarts");
}

TEST(Takeover, WhoDoesNotComeBackIsLost) {
  Harness h;
  const auto a = h.join(running("a", 4));
  h.pass(Duration{5'500});
  EXPECT_EQ(h.count<wire::Stop>(a), 0u);
  h.pass(Duration{500});
  EXPECT_EQ(h.last<wire::Stop>(a).reason,
            "node b was lost: it did not come back after the rendezvous was lost");
  h.say(a, wire::Stopped{4, {}});
  h.pass(Duration{1'000});
  EXPECT_EQ(h.last<wire::RoundStart>(a).round, 5);
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 1);
  // It comes at last, with workers of a round that is over.
  const auto b = h.join(running("b", 4));
  EXPECT_EQ(h.last<wire::Stop>(b).round, 4);
  EXPECT_EQ(h.count<wire::CommitRound>(a), 0u) << "it has to end them first";
  h.say(b, wire::Stopped{4, {}});
  EXPECT_EQ(h.count<wire::CommitRound>(a), 1u);
}

// The silence before the take-over counts: there is no second wait for the node's return.
TEST(Takeover, ANodeThatIsKnownToBeSilentIsAwaitedOnce) {
  const TimePoint taken{Duration{70'000}};
  Harness h(CoreOptions{.return_limit = Duration{1'000}, .silence_of = [&](const NodeId&) {
                          return Silence{.since = taken - Duration{900}};
                        }});
  h.now = taken;
  const auto a = h.join(running("a", 4));
  h.pass(Duration{999});
  EXPECT_EQ(h.count<wire::Stop>(a), 0u);
  h.pass(Duration{1});
  EXPECT_EQ(h.count<wire::Stop>(a), 1u);
  h.say(a, wire::Stopped{4, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(a).round, 5);
}

TEST(Takeover, ANodeWhoseDdpRunHasEndedIsNotAwaited) {
  const TimePoint taken{Duration{70'000}};
  Harness h(CoreOptions{.silence_of = [&](const NodeId& node_id) -> std::optional<Silence> {
    if (node_id != "b") return std::nullopt;
    return Silence{.since = taken - Duration{50}, .lost_from = taken + Duration{100}};
  }});
  h.now = taken;
  const auto a = h.join(running("a", 4));
  EXPECT_EQ(h.core.next_deadline(), taken + Duration{100});
  h.pass(Duration{99});
  EXPECT_EQ(h.count<wire::Stop>(a), 0u);
  h.pass(Duration{1});
  EXPECT_EQ(h.last<wire::Stop>(a).reason,
            "node b was lost: it did not come back after the rendezvous was lost");
  h.say(a, wire::Stopped{4, {}});
  EXPECT_EQ(h.count<wire::RoundStart>(a), 0u) << "it may be started again at once";
  h.pass(Duration{850});
  EXPECT_EQ(h.last<wire::RoundStart>(a).round, 5);
}

// If it comes meanwhile, the round goes on.
TEST(Takeover, ANodeThatWasSilentMayComeBack) {
  Harness h(CoreOptions{.silence_of = [](const NodeId&) {
    return Silence{.since = TimePoint{}, .lost_from = TimePoint{Duration{70'000}}};
  }});
  h.now = TimePoint{Duration{70'000}} - Duration{100};
  const auto b = h.join(running("b", 4));
  const auto a = h.join(running("a", 4));
  h.pass(Duration{10'000});
  EXPECT_EQ(h.count<wire::Stop>(a) + h.count<wire::Stop>(b), 0u);
  EXPECT_THAT(h.status_json(), HasSubstr("\"state\": \"running\""));
}

TEST(Takeover, AMemberThatComesWithoutItsWorkersEndsTheRound) {
  Harness h;
  const auto a = h.join(running("a", 4));
  wire::Join b = running("b", 4);
  b.running_round = kNoRound;
  h.join(b);
  EXPECT_EQ(h.last<wire::Stop>(a).reason,
            "node b was lost: its workers ended while the rendezvous was away");
}

TEST(Takeover, AlsoIfItCameFirst) {
  Harness h;
  wire::Join b = running("b", 4);
  b.running_round = kNoRound;
  h.join(b);
  const auto a = h.join(running("a", 4));
  EXPECT_EQ(h.last<wire::Stop>(a).round, 4);
  h.say(a, wire::Stopped{4, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 1) << "charged once";
}

TEST(Takeover, WorkersThatHadNotMetMeetInAnotherRound) {
  for (const bool all_are_back : {true, false}) {
    Harness h;
    const auto a = h.join(running("a", 4));
    const auto b = all_are_back ? h.join(running("b", 4)) : 0;
    wire::Heartbeat heartbeat;
    heartbeat.meeting = true;
    h.say(a, heartbeat);
    const auto stop = h.last<wire::Stop>(a);
    EXPECT_EQ(stop.round, 4);
    EXPECT_EQ(stop.reason, "the rendezvous was lost before the workers had met");
    EXPECT_TRUE(stop.keep_workers);
    h.say(a, heartbeat);
    EXPECT_EQ(h.count<wire::Stop>(a), 1u);
    h.say(a, wire::Stopped{4, {}});
    const auto other = all_are_back ? b : h.join(running("b", 4));
    EXPECT_EQ(h.last<wire::Stop>(other).round, 4);
    h.say(other, wire::Stopped{4, {}});
    h.pass(Duration{4'000});
    EXPECT_EQ(h.last<wire::RoundStart>(a).round, 5);
    EXPECT_EQ(h.last<wire::RoundStart>(other).restarts, 1) << "charged once";
    // Its own store is there.
    h.say(a, heartbeat);
    EXPECT_EQ(h.count<wire::Stop>(a), 1u);
  }
}

TEST(Takeover, AFailureBeforeTheFirstStepMayComeOfTheLoss) {
  Harness h;
  const auto a = h.join(running("a", 4));
  const auto b = h.join(running("b", 4));
  const auto fail_at_start = [&](Round round) {
    wire::WorkerFailed failed{round, {}};
    failed.failure.exit_code = 73;
    failed.reports_progress = true;
    h.say(a, failed);
    for (const auto each : {a, b}) h.say(each, wire::Stopped{round, {}});
    h.pass(Duration{4'000});
  };
  fail_at_start(4);
  ASSERT_TRUE(h.finished.empty());
  EXPECT_EQ(h.last<wire::RoundStart>(a).round, 5);
  fail_at_start(5);
  ASSERT_FALSE(h.finished.empty());
  EXPECT_THAT(h.finished[0].summary, HasSubstr("no worker had made a step"));
}

TEST(Takeover, AFailureOfWhichTheLostCoordinatorKnewIsToldAgain) {
  Harness h;
  const auto a = h.join(running("a", 4));
  h.fail(a, 4, 9);
  EXPECT_EQ(h.last<wire::Stop>(a).round, 4) << "nobody else needs to be waited for";
  const auto b = h.join(running("b", 4));
  EXPECT_EQ(h.last<wire::Stop>(b).round, 4);
}

TEST(Takeover, TheNewestRoundIsTheOneThatGoesOn) {
  Harness h;
  wire::Join ghost = running("c", 3);
  ghost.members = {{"c", "c", "10.0.0.3", 1, 0}};
  ghost.group_rank = 0;
  const auto c = h.join(ghost);
  const auto a = h.join(running("a", 4));
  EXPECT_EQ(h.last<wire::Stop>(c).round, 3) << "it was cut off when round 4 began";
  h.join(running("b", 4));
  EXPECT_THAT(h.status_json(), HasSubstr("\"state\": \"running\""));
  EXPECT_EQ(h.count<wire::Stop>(a), 0u);
  h.say(c, wire::Stopped{3, {}});
  EXPECT_THAT(h.last<wire::Waiting>(c).text, HasSubstr("spare"));
}

struct NonsenseCase {
  const char* name;
  void (*change)(wire::Join&);
};
class Nonsense : public ::testing::TestWithParam<NonsenseCase> {};

TEST_P(Nonsense, IsStoppedAndNotGoneOnWith) {
  Harness h;
  wire::Join join = running("a", 4);
  GetParam().change(join);
  const auto a = h.join(join);
  EXPECT_EQ(h.last<wire::Stop>(a).round, 4);
  EXPECT_THAT(h.status_json(), HasSubstr("\"state\": \"waiting\""));
}

INSTANTIATE_TEST_SUITE_P(
    , Nonsense,
    ::testing::Values(
        NonsenseCase{"NoMembers", [](wire::Join& j) { j.members = {}; }},
        NonsenseCase{"TooMany",
                     [](wire::Join& j) {
                       j.members.push_back({"c", "c", "", 1, 3});
                     }},
        NonsenseCase{"RankOutside", [](wire::Join& j) { j.group_rank = 2; }},
        NonsenseCase{"RankNegative", [](wire::Join& j) { j.group_rank = -1; }},
        NonsenseCase{"AnothersRank", [](wire::Join& j) { j.group_rank = 1; }},
        NonsenseCase{"Twice", [](wire::Join& j) { j.members.edit()[1].node_id = "a"; }},
        NonsenseCase{"Holes", [](wire::Join& j) { j.members.edit()[1].first_rank = 5; }},
        NonsenseCase{"NoWorkers", [](wire::Join& j) { j.members.edit()[1].nproc = 0; }}),
    [](const auto& suite) { return suite.param.name; });

TEST(Takeover, AnotherWorldOfTheSameNumberIsStopped) {
  Harness h;
  h.join(running("a", 4));
  wire::Join other = running("b", 4);
  other.members = {{"x", "x", "10.0.0.9", 1, 0}, {"b", "b", "10.0.0.2", 1, 1}};
  const auto b = h.join(other);
  EXPECT_EQ(h.last<wire::Stop>(b).round, 4);
}

TEST(Takeover, ARecordThatNamesTheRoundChangesNothing) {
  Harness h;
  h.restore(Harness::record(5, 1, 3));
  const auto a = h.join(running("a", 4, 1));
  const auto b = h.join(running("b", 4, 1));
  EXPECT_THAT(h.status_json(), HasSubstr("\"state\": \"running\""));
  h.fail(b, 4, 9);
  h.say(a, wire::Stopped{4, {}});
  h.say(b, wire::Stopped{4, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 2);
}

TEST(Takeover, AnOlderRoundThanTheRecordsIsStopped) {
  Harness h;
  h.restore(Harness::record(6, 1, 3));
  EXPECT_EQ(h.last<wire::Stop>(h.join(running("a", 4, 1))).round, 4);
}

// ---- the same round over another connection ----

// "a" and "b" in round 0, as this coordinator has begun it.
struct Running : Harness {
  Running() {
    wire::Join first = running("a", 0);
    first.nproc = 2;
    wire::Join second = running("b", 0);
    for (wire::Join* each : {&first, &second}) {
      each->running_round = kNoRound;
      each->last_round = kNoRound;
    }
    a = join(first);
    b = join(second);
    EXPECT_EQ(rounds.size(), 1u);
  }
  ConnectionId a = 0;
  ConnectionId b = 0;
};

TEST(Reconnect, AnAgentThatNoticesFirstGoesOn) {
  Running h;
  const auto b2 = h.join(running("b", 0));
  EXPECT_TRUE(h.closed.contains(h.b));
  EXPECT_EQ(h.count<wire::Welcome>(b2), 1u);
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  h.say(h.a, wire::Succeeded{0});
  h.say(b2, wire::Succeeded{0});
  EXPECT_EQ(h.finished.at(0).exit_code, 0);
}

TEST(Reconnect, AFailureThatIsToldTwiceCountsOnce) {
  Running h;
  h.fail(h.a, 0, 0, kExitCollectiveFailed, true);
  h.fail(h.b, 0, 0, kExitCollectiveFailed, true);
  const auto b2 = h.join(running("b", 0));
  h.fail(b2, 0, 0, kExitCollectiveFailed, true);
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u) << "the third worker may be the cause";
  h.pass(Duration{3'000});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 1u);
}

TEST(Reconnect, AStopIsToldAgain) {
  Running h;
  h.fail(h.a, 0, 9);
  const auto b2 = h.join(running("b", 0));
  EXPECT_EQ(h.last<wire::Stop>(b2).reason, h.last<wire::Stop>(h.a).reason);
  h.say(h.a, wire::Stopped{0, {}});
  EXPECT_EQ(h.rounds.size(), 1u);
  h.say(b2, wire::Stopped{0, {}});
  EXPECT_EQ(h.rounds.size(), 2u);
}

TEST(Reconnect, ANodeThatWasLostEndsItsRoundBeforeTheNext) {
  Running h;
  h.disconnect(h.b);
  h.say(h.a, wire::Stopped{0, {}});
  const auto b2 = h.join(running("b", 0));
  EXPECT_EQ(h.last<wire::Stop>(b2).round, 0);
  EXPECT_EQ(h.rounds.size(), 1u);
  h.say(b2, wire::Stopped{0, {}});
  EXPECT_EQ(h.rounds.size(), 2u) << "everybody is back";
  EXPECT_EQ(h.last<wire::RoundStart>(b2).members.size(), 2u);
}

TEST(Reconnect, WhoDoesNotEndAnOldRoundIsLost) {
  Running h;
  h.disconnect(h.b);
  h.say(h.a, wire::Stopped{0, {}});
  const auto b2 = h.join(running("b", 0));
  h.pass(Duration{25'000});
  EXPECT_TRUE(h.closed.contains(b2));
}

TEST(Reconnect, ANodeThatWasLostAfterItsSuccessKeepsIt) {
  Running h;
  h.say(h.b, wire::Succeeded{0});
  h.disconnect(h.b);
  const auto b2 = h.join(running("b", 0));
  h.say(b2, wire::Succeeded{0});
  EXPECT_EQ(h.count<wire::Stop>(b2), 0u);
  h.say(h.a, wire::Succeeded{0});
  EXPECT_EQ(h.last<wire::Finish>(b2).exit_code, 0);
}

}  // namespace
}  // namespace ddp::rendezvous
