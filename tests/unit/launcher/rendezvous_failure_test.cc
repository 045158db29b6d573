// Consequences of failures of workers, agents and nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Harness = CoordinatorHarness;

// Two nodes "a" and "b" in round 0.
struct Pair : Harness {
  explicit Pair(int max_restarts) {
    a = join(node("a", 2, 2, max_restarts));
    b = join(node("b", 2, 2, max_restarts));
  }
  void both_stopped(Round round) {
    say(a, wire::Stopped{round, {}});
    say(b, wire::Stopped{round, {}});
  }
  ConnectionId a = 0;
  ConnectionId b = 0;
};

TEST(Failure, AFailedWorkerStopsAllNodesAndTheNextRoundFollows) {
  Pair h(3);
  h.fail(h.b, 0, 9);
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "rank 1 on b failed: signal 9 (SIGKILL)");
  EXPECT_EQ(h.last<wire::Stop>(h.b).round, 0);
  h.say(h.a, wire::Stopped{0, {}});
  EXPECT_EQ(h.rounds.size(), 1u) << "b has not answered";
  h.say(h.b, wire::Stopped{0, {}});
  const auto start = h.last<wire::RoundStart>(h.a);
  EXPECT_EQ(start.round, 1);
  EXPECT_EQ(start.restarts, 1);
  EXPECT_EQ(start.max_restarts, 3);
  EXPECT_EQ(start.reason, "rank 1 on b failed: signal 9 (SIGKILL); restart 1 of 3");
}

TEST(Failure, TheBudgetIsTheWholeJobsAndEndsItWithTheRootCausesStatus) {
  Pair h(2);
  h.fail(h.a, 0, 0, 1);
  h.both_stopped(0);
  h.fail(h.b, 1, 0, 1);
  h.both_stopped(1);
  h.pass(Duration{500});
  h.fail(h.a, 2, 11);
  h.both_stopped(2);
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 128 + 11);
  EXPECT_EQ(h.finished[0].summary,
            "rank 0 on a failed: signal 11 (SIGSEGV); all 2 restarts are used up");
  EXPECT_THAT(h.finished[0].report, HasSubstr("Root Cause (first observed failure):"));
  EXPECT_THAT(h.finished[0].report, HasSubstr("2 of 2 restarts used"));
  EXPECT_EQ(h.last<wire::Finish>(h.a).exit_code, 139);
  EXPECT_EQ(h.last<wire::Finish>(h.b).exit_code, 139);
  EXPECT_EQ(h.rounds.size(), 3u);
}

TEST(Failure, TheRootCauseIsTheFirstFailureThatIsNotSecondary) {
  Pair h(0);
  h.fail(h.a, 0, 0, kExitCollectiveFailed, true);
  h.pass(Duration{3'000});
  wire::Failure real;
  real.rank = 1;
  real.exit_code = 37;
  h.say(h.a, wire::Stopped{0, {}});
  h.say(h.b, wire::Stopped{0, {real}});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 37);
  EXPECT_EQ(h.finished[0].summary, "rank 1 on b failed: exit code 37");
}

// A stop would end the worker whose failure this is before it has told its status.
TEST(Failure, ASecondaryFailureWaitsForItsCause) {
  Pair h(0);
  h.fail(h.a, 0, 0, kExitCollectiveFailed, true);
  h.pass(Duration{2'500});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  h.fail(h.b, 0, 0, kExitCheckpointUnwritable);
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "rank 1 on b failed: exit code 68");
  h.both_stopped(0);
  EXPECT_EQ(h.finished.at(0).exit_code, kExitCheckpointUnwritable);
}

TEST(Failure, AHungCauseIsNotWaitedForLong) {
  Pair h(0);
  h.fail(h.a, 0, 0, kExitCollectiveFailed, true);
  ASSERT_TRUE(h.core.next_deadline().has_value());
  EXPECT_LE(*h.core.next_deadline(), h.now + Duration{3'000});
  h.pass(Duration{3'000});
  EXPECT_EQ(h.last<wire::Stop>(h.b).reason, "rank 0 on a failed: exit code 73");
}

// Workers that park get no SIGTERM, so the cause can still end in its own way.
TEST(Failure, AWorkerThatLeavesTheRoundEndsItAtOnce) {
  Pair h(1);
  wire::Failure left;
  left.kind = "collective";
  left.exit_code = kExitCollectiveFailed;
  left.secondary = true;
  h.say(h.a, wire::WorkerFailed{0, left});
  EXPECT_EQ(h.count<wire::Stop>(h.b), 1u);
  h.say(h.a, wire::Stopped{0, {}});
  wire::Failure cause;
  cause.rank = 1;
  cause.signal = 11;
  h.say(h.b, wire::Stopped{0, {cause}});
  EXPECT_EQ(h.last<wire::RoundStart>(h.a).reason,
            "rank 1 on b failed: signal 11 (SIGSEGV); restart 1 of 1");
}

// More secondary failures do not put the end off.
TEST(Failure, TheWaitForACauseBeginsWithTheFirstSecondaryFailure) {
  Harness h;
  const auto a = h.join(Harness::node("a", 3, 3));
  const auto b = h.join(Harness::node("b", 3, 3));
  const auto c = h.join(Harness::node("c", 3, 3));
  h.fail(a, 0, 0, kExitCollectiveFailed, true);
  h.pass(Duration{2'000});
  h.fail(b, 0, 0, kExitCollectiveFailed, true);
  h.pass(Duration{1'000});
  EXPECT_EQ(h.count<wire::Stop>(c), 1u);
}

TEST(Failure, ALostNodeIsACause) {
  Pair h(0);
  h.fail(h.a, 0, 0, kExitCollectiveFailed, true);
  h.disconnect(h.b);
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "node b was lost: its connection closed");
  h.say(h.a, wire::Stopped{0, {}});
  EXPECT_EQ(h.finished.at(0).exit_code, kExitNodeLost);
}

TEST(Failure, NoCauseIsWaitedForWhereEveryOtherWorkerHasSucceeded) {
  Pair h(0);
  h.fail(h.a, 0, 0, kExitCollectiveFailed, true);
  h.say(h.b, wire::Succeeded{0});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 1u);
}

// It would end the round before its cause is known, and as one that costs no restart.
TEST(Failure, ANodeThatJoinsDoesNotEndTheWaitForACause) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 3, 0));
  const auto b = h.join(Harness::node("b", 2, 3, 0));
  h.pass(Duration{3'000});
  ASSERT_EQ(h.rounds.size(), 1u);
  h.fail(a, 0, 0, kExitCollectiveFailed, true);
  h.join(Harness::node("c", 2, 3, 0));
  EXPECT_EQ(h.count<wire::Stop>(b), 0u);
  h.fail(b, 0, 0, 37);
  h.say(a, wire::Stopped{0, {}});
  h.say(b, wire::Stopped{0, {}});
  EXPECT_EQ(h.finished.at(0).exit_code, 37);
}

TEST(Failure, TheReportSaysWhatEachNodeWaitedFor) {
  Pair h(1);
  h.fail(h.a, 0, 9);
  h.say(h.a, wire::Stopped{0, {}, 0, -1, false, {"of an older round"}});
  h.say(h.b, wire::Stopped{0, {}});
  h.fail(h.a, 1, 9);
  h.say(h.a, wire::Stopped{1, {}, 0, -1, false, {"rank 1 waits"}});
  h.say(h.b, wire::Stopped{1, {}});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_THAT(h.finished[0].report, HasSubstr("  a:\n    rank 1 waits\n"));
  EXPECT_THAT(h.finished[0].report, Not(HasSubstr("older")));
}

TEST(Failure, WhereAllAreSecondaryTheFirstIsNamed) {
  Pair h(0);
  h.fail(h.b, 0, 0, kExitCollectiveFailed, true);
  h.fail(h.a, 0, 0, kExitCollectiveFailed, true);
  h.both_stopped(0);
  EXPECT_EQ(h.finished.at(0).exit_code, kExitCollectiveFailed);
  EXPECT_EQ(h.finished.at(0).summary, "rank 1 on b failed: exit code 73");
}

TEST(Failure, WhoReportsIsKnownFromTheConnection) {
  Pair h(0);
  wire::Failure failure;
  failure.node_id = "a";
  failure.host = "a";
  failure.exit_code = 3;
  h.say(h.b, wire::WorkerFailed{0, failure});
  EXPECT_THAT(h.last<wire::Stop>(h.a).reason, HasSubstr("on b failed"));
}

TEST(Failure, AClosedConnectionIsALostNodeAtOnce) {
  Pair h(1);
  h.disconnect(h.b);
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "node b was lost: its connection closed");
  h.say(h.a, wire::Stopped{0, {}});
  EXPECT_THAT(h.last<wire::Waiting>(h.a).text,
              HasSubstr("1 missing (lost: b; start ddp-run there again)"));
  h.pass(Duration{60'000});
  EXPECT_EQ(h.finished.at(0).exit_code, kExitJoinTimeout);
  EXPECT_THAT(h.finished.at(0).summary, HasSubstr("before that, node b was lost"));
  EXPECT_THAT(h.finished.at(0).report, HasSubstr("Root Cause"));
}

TEST(Failure, ALostNodeWithoutBudgetEndsTheJob) {
  Pair h(0);
  h.disconnect(h.b);
  h.say(h.a, wire::Stopped{0, {}});
  EXPECT_EQ(h.finished.at(0).exit_code, kExitNodeLost);
}

TEST(Failure, SilenceIsALostNodeAfterTheLease) {
  Pair h(0);
  h.pass(Duration{4'500}, {h.b});
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  h.pass(Duration{500}, {h.b});
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "node b was lost: no message came from it for 5.0 s");
  EXPECT_TRUE(h.closed.contains(h.b)) << "a node that comes back from silence must find out";
}

TEST(Failure, TheJobChoosesItsLease) {
  CoordinatorHarness h;
  const auto join = [&](const std::string& name) {
    wire::Join message = CoordinatorHarness::node(name, 2, 2);
    message.rules.lease_ms = 1'500;
    return h.join(message);
  };
  const ConnectionId a = join("a");
  const ConnectionId b = join("b");
  EXPECT_EQ(h.last<wire::Welcome>(b).lease_ms, 1'500);
  EXPECT_EQ(h.last<wire::Welcome>(b).heartbeat_ms, 300) << "several in a lease";
  h.pass(Duration{1'000}, {b});
  EXPECT_EQ(h.count<wire::Stop>(a), 0u);
  h.pass(Duration{500}, {b});
  EXPECT_EQ(h.last<wire::Stop>(a).reason, "node b was lost: no message came from it for 1.5 s");
}

TEST(Failure, ASpareThatIsSilentTooIsNotPromotedJustToBeLost) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1, 5));
  const auto b = h.join(Harness::node("b", 1, 1, 5));
  h.pass(Duration{5'000}, {a, b});
  EXPECT_EQ(h.rounds.size(), 1u);
  const auto c = h.join(Harness::node("c", 1, 1, 5));
  EXPECT_EQ(h.last<wire::RoundStart>(c).restarts, 1);
}

TEST(Failure, WhoDoesNotStopInTimeIsLost) {
  Pair h(1);
  h.fail(h.a, 0, 9);
  h.say(h.a, wire::Stopped{0, {}});
  // 10 s to park, as many from SIGTERM to SIGKILL, 5 s for the answer.
  h.pass(Duration{24'500});
  EXPECT_FALSE(h.closed.contains(h.b));
  h.pass(Duration{500});
  EXPECT_TRUE(h.closed.contains(h.b));
  EXPECT_THAT(h.last<wire::Waiting>(h.a).text, HasSubstr("lost: b"));
}

TEST(Failure, AJoinWithTheSameNodeIdFencesTheOldIncarnation) {
  Pair h(1);
  const auto b2 = h.join(Harness::node("b", 2, 2, 1));
  EXPECT_TRUE(h.closed.contains(h.b));
  EXPECT_EQ(h.last<wire::Stop>(h.a).reason, "node b was lost: its agent joined again");
  // The old incarnation has no voice any more.
  h.closed.erase(h.b);
  h.fail(h.b, 0, 9);
  h.disconnect(h.b);
  EXPECT_EQ(h.count<wire::RoundStart>(b2), 0u);
  h.say(h.a, wire::Stopped{0, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(b2).round, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(b2).restarts, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(b2).group_rank, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(b2).lost_ranks, std::vector<Rank>()) << "the writers go on";
}

TEST(Failure, QuickRejoinsDoNotGetAroundTheBudget) {
  Harness h;
  for (int i = 0; i < 3; ++i) {
    h.join(Harness::node("a", 1, 1, 2));
    h.pass(Duration{500});
  }
  EXPECT_EQ(h.rounds.size(), 3u);
  const auto last = h.join(Harness::node("a", 1, 1, 2));
  EXPECT_EQ(h.finished.at(0).exit_code, kExitNodeLost);
  EXPECT_EQ(h.last<wire::Finish>(last).exit_code, kExitNodeLost);
}

TEST(Failure, AllMembersSucceededIsTheEnd) {
  Pair h(0);
  h.say(h.a, wire::Succeeded{0});
  EXPECT_TRUE(h.finished.empty());
  h.pass(Duration{3'600'000});
  EXPECT_TRUE(h.finished.empty()) << "the exit barrier has no time-out";
  h.say(h.b, wire::Succeeded{0});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 0);
  EXPECT_EQ(h.finished[0].report, "");
  EXPECT_EQ(h.finished[0].summary, "2 workers on 2 nodes succeeded in round 0 after 0 restarts");
}

TEST(Failure, ANodeLostAfterItsSuccessHasSucceeded) {
  Pair h(0);
  h.say(h.b, wire::Succeeded{0});
  h.disconnect(h.b);
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  // Its agent's successor joins: the round goes on.
  const auto b2 = h.join(Harness::node("b", 2, 2, 0));
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  h.say(h.a, wire::Succeeded{0});
  EXPECT_EQ(h.finished.at(0).exit_code, 0);
  EXPECT_EQ(h.last<wire::Finish>(b2).exit_code, 0);
}

TEST(Failure, ARoundIsRunAgainByNodesThatHadSucceeded) {
  Pair h(1);
  h.say(h.b, wire::Succeeded{0});
  h.fail(h.a, 0, 9);
  EXPECT_EQ(h.last<wire::Stop>(h.b).round, 0);
  h.both_stopped(0);
  EXPECT_EQ(h.last<wire::RoundStart>(h.b).round, 1);
  h.say(h.b, wire::Succeeded{1});
  EXPECT_TRUE(h.finished.empty()) << "the success of round 0 is void";
}

TEST(Failure, SuccessThatArrivesWhileTheRoundStopsForANewNodeIsTheEnd) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2));
  h.pass(Duration{3'000});
  const auto b = h.join(Harness::node("b", 1, 2));
  h.say(a, wire::NodeCommitted{0, 7});
  h.say(a, wire::Succeeded{0});
  EXPECT_EQ(h.last<wire::Finish>(b).exit_code, 0);
}

struct PermanentCase {
  const char* name;
  const char* kind;
  int exit_code;
  bool retried;
};
class Permanent : public ::testing::TestWithParam<PermanentCase> {};

TEST_P(Permanent, IsNotRetried) {
  Pair h(3);
  wire::Failure failure;
  failure.kind = GetParam().kind;
  failure.exit_code = GetParam().exit_code;
  failure.message = "why";
  h.say(h.a, wire::WorkerFailed{0, failure});
  h.both_stopped(0);
  EXPECT_EQ(h.rounds.size(), GetParam().retried ? 2u : 1u);
  if (GetParam().retried) return;
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, GetParam().exit_code);
  EXPECT_THAT(h.finished[0].report, HasSubstr("not restarted: status"));
}

INSTANTIATE_TEST_SUITE_P(
    , Permanent,
    ::testing::Values(PermanentCase{"Missing", "start", 127, false},
                      PermanentCase{"NotExecutable", "start", 126, false},
                      PermanentCase{"OtherStart", "start", 1, true},
                      PermanentCase{"InvalidValue", "worker", kExitInvalidValue, false},
                      PermanentCase{"DataInvalid", "worker", kExitDataInvalid, false},
                      PermanentCase{"Unwritable", "worker", kExitCheckpointUnwritable, false},
                      PermanentCase{"CheckpointFailed", "worker", kExitCheckpointFailed, true},
                      // A shell's own 127 is a worker that ran.
                      PermanentCase{"ShellNotFound", "worker", 127, true},
                      PermanentCase{"Plain", "worker", 1, true}),
    [](const auto& suite) { return suite.param.name; });

TEST(Failure, AWorkerThatTheKernelHoldsIsNotStartedAgain) {
  Pair h(3);
  wire::Failure failure;
  failure.kind = "stuck";
  failure.signal = 9;
  h.say(h.a, wire::WorkerFailed{0, failure});
  h.both_stopped(0);
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 128 + 9);
  EXPECT_THAT(
      h.finished[0].report,
      HasSubstr(
          "not restarted: a new process on the host would need what the process in state D holds"));
}

TEST(Failure, AWorkerThatTheKernelHoldsCostsItsNodeAloneWhereTheOthersAreEnough) {
  Harness h;
  const ConnectionId a = h.join(h.node("a", 1, 2, 3));
  const ConnectionId b = h.join(h.node("b", 1, 2, 3));
  h.pass(Duration{60'000});
  ASSERT_EQ(h.rounds.size(), 1u);
  wire::Failure failure;
  failure.kind = "stuck";
  failure.signal = 9;
  h.say(a, wire::WorkerFailed{0, failure});
  h.say(b, wire::Stopped{0, {}});
  h.say(a, wire::Stopped{0, {}});
  EXPECT_TRUE(h.finished.empty());
  ASSERT_EQ(h.rounds.size(), 2u);
  h.say(a, wire::Leave{"it holds a worker"});
  h.say(b, wire::Stopped{1, {}});
  const auto alone = h.last<wire::RoundStart>(b);
  EXPECT_EQ(alone.round, 2);
  EXPECT_EQ(alone.members.size(), 1u);
  EXPECT_EQ(alone.restarts, 1) << "only the failure is charged";
}

TEST(Failure, MessagesOfAnotherRoundAreIgnored) {
  Pair h(3);
  h.fail(h.a, 7, 9);
  h.fail(h.a, -1, 9);
  h.say(h.a, wire::Succeeded{1});
  h.say(h.b, wire::Succeeded{1});
  h.both_stopped(0);
  EXPECT_EQ(h.count<wire::Stop>(h.a), 0u);
  EXPECT_TRUE(h.finished.empty());
  h.fail(h.a, 0, 9);
  h.both_stopped(0);
  h.fail(h.b, 0, 9);
  EXPECT_EQ(h.count<wire::Stop>(h.a), 1u) << "round 0 is over";
}

TEST(Failure, StrangersAndSecondJoinsAreClosed) {
  Pair h(1);
  h.say(99, wire::Heartbeat{});
  EXPECT_TRUE(h.closed.contains(99));
  h.say(h.b, Harness::node("b", 2, 2, 1));
  EXPECT_TRUE(h.closed.contains(h.b));
  EXPECT_THAT(h.last<wire::Stop>(h.a).reason, HasSubstr("node b was lost"));
}

TEST(Failure, AFinishedJobRefusesStrangersAndTellsMembersThatMissedTheEnd) {
  Pair h(0);
  h.fail(h.a, 0, 0, 5);
  h.say(h.a, wire::Stopped{0, {}});
  h.disconnect(h.b);
  ASSERT_EQ(h.finished.size(), 1u);
  const auto b2 = h.join(Harness::node("b", 2, 2, 0));
  EXPECT_EQ(h.last<wire::Finish>(b2).exit_code, 5);
  EXPECT_TRUE(h.closed.contains(b2));
  const auto c = h.join(Harness::node("c", 2, 2, 0));
  EXPECT_EQ(h.last<wire::Refused>(c).message, "job job is over: rank 0 on a failed: exit code 5");
}

TEST(Failure, TheUserCanEndTheJob) {
  Pair h(5);
  h.take(h.core.end_job(h.now, "job", 130, "interrupted"));
  EXPECT_EQ(h.last<wire::Finish>(h.a).exit_code, 130);
  EXPECT_EQ(h.last<wire::Finish>(h.b).summary, "interrupted");
  EXPECT_EQ(h.finished.size(), 1u);
  h.take(h.core.end_job(h.now, "job", 130, "interrupted"));
  h.take(h.core.end_job(h.now, "no such job", 130, "interrupted"));
  EXPECT_EQ(h.finished.size(), 1u);
}

TEST(Failure, ALeaveExplainsFailuresOfItsOwnRoundOnly) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 1));
  const auto b = h.join(Harness::node("b", 1, 2, 1));
  h.say(b, wire::Leave{"node b left"});
  h.say(a, wire::Stopped{0, {}});
  h.fail(a, 1, 0, kExitCollectiveFailed, true);
  h.say(a, wire::Stopped{1, {}});
  EXPECT_EQ(h.last<wire::RoundStart>(a).reason, "rank 0 on a failed: exit code 73; restart 1 of 1");
}

TEST(Failure, StepsAreCountedAnewInEveryRound) {
  Pair h(2);
  h.say(h.b, wire::Heartbeat{41});
  h.fail(h.a, 0, 9);
  h.both_stopped(0);
  EXPECT_THAT(h.status_json(), Not(HasSubstr("\"step\": 41")));
}

TEST(Failure, StatusTellsWhatHappens) {
  Pair h(2);
  h.say(h.b, wire::Heartbeat{41});
  std::string status = h.status_json();
  EXPECT_THAT(status, HasSubstr("\"state\": \"running\""));
  EXPECT_THAT(status, HasSubstr("\"step\": 41"));
  h.fail(h.a, 0, 9);
  EXPECT_THAT(h.status_json(), HasSubstr("rank 0 on a failed: signal 9 (SIGKILL)"));
}

}  // namespace
}  // namespace ddp::rendezvous
