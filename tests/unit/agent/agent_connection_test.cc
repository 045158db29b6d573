// How an agent finds the coordinator, and what it does without one; one rule per test.
#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/agent_harness.h"

namespace ddp::agent {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(Agent, ConnectsAtOnceAndJoinsWithWhatItKnows) {
  AgentCore successor(spec(2), 7, 3);
  EXPECT_THAT(names(successor.start(now)), ElementsAre("connect+0"));
  const auto join = the<wire::Join>(successor.on_connected(now));
  EXPECT_EQ(join.job_id, "job");
  EXPECT_EQ(join.node_id, "id1");
  EXPECT_EQ(join.host, "n1");
  EXPECT_EQ(join.nproc, 2);
  EXPECT_EQ(join.last_round, 7);
  EXPECT_EQ(join.restarts, 3);
  EXPECT_EQ(join.rules.stop_timeout_ms, 5'000);
}

TEST_F(Agent, TriesAgainWithLongerAndLongerDelays) {
  core.start(now);
  for (const char* delay : {"50", "100", "200", "400", "800", "1000", "1000"}) {
    EXPECT_THAT(names(core.on_connect_failed(now, "connection refused")),
                ElementsAre(std::string("connect+") + delay));
  }
}

TEST_F(Agent, SaysAfterAWhileThatNobodyAnswers) {
  config::JobSpec several = spec(2);
  several.rules.max_nodes = 2;
  AgentCore agent(several, kNoRound, 0);
  agent.start(now);
  now += Duration{1'500};
  const auto actions = agent.on_connect_failed(now, "connection refused");
  EXPECT_THAT(names(actions), ElementsAre("print", "connect+50"));
  EXPECT_EQ(the<Print>(actions).text,
            "the rendezvous head:29400 does not answer (connection refused); trying for 9 s more");
}

// Who forgets --nnodes has a job of one node, whose rendezvous is elsewhere.
TEST_F(Agent, AJobOfOneNodeThatFindsNoRendezvousElsewhereHearsOfNnodes) {
  const auto end_of = [&](int max_nodes, const std::string& host) {
    config::JobSpec job = spec(2);
    job.rules.max_nodes = max_nodes;
    job.coordinator_host = host;
    AgentCore agent(job, kNoRound, 0);
    agent.start(now);
    now += Duration{1'500};
    std::string texts = the<Print>(agent.on_connect_failed(now, "connection refused")).text;
    now += Duration{10'000};
    return texts + "\n" + the<Exit>(agent.on_connect_failed(now, "refused")).result.summary;
  };
  const std::string hint = "; --nnodes is 1, the default: a job of several nodes needs --nnodes";
  EXPECT_THAT(end_of(1, "head"), ContainsRegex(hint + ".*\n.*" + hint));
  EXPECT_THAT(end_of(2, "head"), Not(HasSubstr("--nnodes")));
  EXPECT_THAT(end_of(1, "127.0.0.1"), Not(HasSubstr("--nnodes")));
}

TEST_F(Agent, GivesUpAfterTheJoinTimeout) {
  core.start(now);
  core.on_connect_failed(now, "connection refused");
  const auto actions = tick_at_deadline();
  EXPECT_EQ(now, TimePoint{Duration{1'010'000}});
  EXPECT_THAT(names(actions), ElementsAre("exit 67"));
  EXPECT_THAT(
      the<Exit>(actions).result.summary,
      HasSubstr(
          "--rdzv-endpoint head:29400: no rendezvous answers within 10 s (connection refused)"));
  EXPECT_FALSE(core.next_deadline());
}

TEST_F(Agent, WhoIsNotBelievedIsNotAskedAgain) {
  core.start(now);
  const auto actions = core.on_connect_refused(now, "head:29400: it has another token");
  EXPECT_THAT(names(actions), ElementsAre("exit 74"));
  EXPECT_EQ(the<Exit>(actions).result.summary, "the rendezvous head:29400: it has another token");
}

TEST_F(Agent, AStrangerAtTheLostCoordinatorsPortDoesNotEndTheRound) {
  run(4);
  core.on_disconnected(now);
  EXPECT_THAT(names(core.on_connect_refused(now, "it could not prove itself")),
              ElementsAre("connect+50"));
  EXPECT_THAT(names(core.on_connected(now)), ElementsAre(testing::StartsWith("join")));
}

TEST_F(Agent, GivesUpOnSomebodyWhoAcceptsButDoesNotAnswer) {
  core.start(now);
  core.on_connected(now);
  const auto actions = tick_at_deadline();
  EXPECT_THAT(names(actions), ElementsAre("disconnect", "exit 67"));
  EXPECT_THAT(the<Exit>(actions).result.summary,
              HasSubstr("accepts connections but does not answer"));
}

TEST_F(Agent, AConnectionThatClosesBeforeTheWelcomeIsAFailedAttempt) {
  core.start(now);
  core.on_connected(now);
  EXPECT_THAT(names(core.on_disconnected(now)), ElementsAre("connect+50"));
}

TEST_F(Agent, HeartbeatsWithTheLargestStep) {
  run();
  EXPECT_EQ(the<wire::Heartbeat>(tick_at_deadline()).step, -1);
  EXPECT_EQ(now, TimePoint{Duration{1'001'000}});
  core.on_worker_progress(now, 0, 12);
  core.on_worker_progress(now, 1, 11);
  EXPECT_EQ(the<wire::Heartbeat>(tick_at_deadline()).step, 12);
}

// The coordinator may have begun the next round when a heartbeat comes.
TEST_F(Agent, HeartbeatsNameTheRoundOfWhichTheyTell) {
  join();
  EXPECT_EQ(the<wire::Heartbeat>(tick_at_deadline()).round, kNoRound);
  message(round_start(4));
  core.on_worker_progress(now, 0, 12);
  EXPECT_EQ(the<wire::Heartbeat>(tick_at_deadline()).round, 4);
  message(wire::Stop{4, "why"});
  message(round_start(5));
  EXPECT_EQ(the<wire::Heartbeat>(tick_at_deadline()).step, 12);
  EXPECT_EQ(the<wire::Heartbeat>(tick_at_deadline()).round, 4) << "it has not begun the next one";
}

TEST_F(Agent, PrintsWhoIsMissingWhenThatChanges) {
  join();
  wire::Waiting waiting{1, 2, 2, {"n1"}, "1 of 2 nodes is in"};
  EXPECT_EQ(the<Print>(message(waiting)).text, "1 of 2 nodes is in");
  waiting.text = "the same with fewer seconds left";
  EXPECT_THAT(names(message(waiting)), IsEmpty());
  waiting.hosts = {"n2"};
  EXPECT_THAT(names(message(waiting)), ElementsAre("print"));
  now += Duration{5'000};
  EXPECT_THAT(names(message(waiting)), ElementsAre("print")) << "a long wait is not silent";
}

TEST_F(Agent, ARefusalIsTheEnd) {
  core.start(now);
  core.on_connected(now);
  const auto actions = message(wire::Refused{"job job is over"});
  EXPECT_THAT(names(actions), ElementsAre("disconnect", "exit 74"));
  EXPECT_THAT(the<Exit>(actions).result.summary, HasSubstr("job job is over"));
}

TEST_F(Agent, ALostConnectionLeavesTheRoundRunning) {
  run(4);
  now += Duration{2'000};
  core.on_moved("next", 5);
  const auto actions = core.on_disconnected(now);
  EXPECT_THAT(names(actions), ElementsAre("print", "connect+0"));
  EXPECT_EQ(the<Print>(actions).text,
            "the connection to the rendezvous head:29400 is lost; the workers go on");
  const auto join = the<wire::Join>(core.on_connected(now));
  EXPECT_EQ(join.last_round, 4);
  EXPECT_EQ(join.running_round, 4);
  EXPECT_EQ(join.group_rank, 1);
  ASSERT_EQ(join.members.size(), 2u);
  EXPECT_EQ(join.members[1].node_id, "id1");
  EXPECT_THAT(names(core.on_message(now, wire::Welcome{})), IsEmpty()) << "nothing has happened";
  // Orders of the new connection are for the round that runs.
  EXPECT_THAT(names(message(wire::Stop{4, "why"})), ElementsAre("signal 15: why"));
}

TEST_F(Agent, TheNoticeOfAWelcomeIsShown) {
  core.start(now);
  core.on_connected(now);
  EXPECT_THAT(names(message(wire::Welcome{.notice = "another rank"})), ElementsAre("print"));
}

TEST_F(Agent, WhatHappensWhileTheCoordinatorIsAwayIsToldAfterwards) {
  run(4);
  core.on_worker_hello(now, 0, false);
  core.on_disconnected(now);
  core.on_worker_progress(now, 0, 17);
  EXPECT_THAT(names(ends(0, 0, SIGKILL)), IsEmpty());
  core.on_connected(now);
  const auto actions = message(wire::Welcome{});
  EXPECT_THAT(names(actions), ElementsAre("heartbeat", "failed"));
  const auto failed = the<wire::WorkerFailed>(actions);
  EXPECT_EQ(failed.round, 4);
  EXPECT_EQ(failed.failure.signal, SIGKILL);
  EXPECT_EQ(failed.step, 17);
  EXPECT_TRUE(failed.reports_progress);
}

TEST_F(Agent, AFailureThatALostCoordinatorHeardOfIsToldToTheNextOne) {
  run(4);
  EXPECT_THAT(names(ends(1, 3)), ElementsAre("failed"));
  core.on_disconnected(now);
  core.on_connected(now);
  EXPECT_EQ(the<wire::WorkerFailed>(message(wire::Welcome{})).failure.exit_code, 3);
}

TEST_F(Agent, SuccessWhileTheCoordinatorIsAwayIsToldAfterwards) {
  run(4);
  core.on_disconnected(now);
  ends(0, 0);
  EXPECT_THAT(names(ends(1, 0)), ElementsAre("clear"));
  EXPECT_THAT(names(core.on_round_cleared(now)), IsEmpty()) << "it is connecting already";
  EXPECT_EQ(the<wire::Join>(core.on_connected(now)).running_round, 4);
  EXPECT_THAT(names(message(wire::Welcome{})), ElementsAre("succeeded"));
  // That connection is lost as well, and with it what was said.
  core.on_disconnected(now);
  EXPECT_EQ(the<wire::Join>(core.on_connected(now)).running_round, 4);
  EXPECT_THAT(names(message(wire::Welcome{})), ElementsAre("succeeded"));
  // Somebody has ended the round: its success is void.
  EXPECT_THAT(names(message(wire::Stop{4, "why"})), ElementsAre("stopped"));
  core.on_disconnected(now);
  EXPECT_EQ(the<wire::Join>(core.on_connected(now)).running_round, kNoRound);
}

TEST_F(Agent, AStopThatTheConnectionDoesNotOutliveIsCarriedOutAndNotAnswered) {
  run(4);
  message(wire::Stop{4, "why"});
  EXPECT_THAT(names(core.on_disconnected(now)), ElementsAre("print"));
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("connect+0"));
  EXPECT_EQ(the<wire::Join>(core.on_connected(now)).running_round, kNoRound);
  EXPECT_THAT(names(message(wire::Welcome{})), IsEmpty());
}

TEST_F(Agent, ANodeThatIsThrownOutAgainAndAgainSlowsDown) {
  join();
  EXPECT_THAT(names(core.on_disconnected(now)), ElementsAre("print", "connect+0"));
  core.on_connect_failed(now, "refused");
  core.on_connected(now);
  message(wire::Welcome{});
  EXPECT_THAT(names(core.on_disconnected(now)), ElementsAre("print", "connect+50"));
  core.on_connect_failed(now, "refused");
  core.on_connected(now);
  message(wire::Welcome{});
  now += Duration{1'000};
  EXPECT_THAT(names(core.on_disconnected(now)), ElementsAre("print", "connect+0"));
}

TEST_F(Agent, ACoordinatorThatDoesNotComeBackIsTheEnd) {
  run(4);
  now += Duration{2'000};
  core.on_disconnected(now);
  const TimePoint lost = now;
  core.on_connect_failed(now, "connection refused");
  EXPECT_THAT(names(tick_at_deadline()),
              ElementsAre("signal 15: the rendezvous head:29400 was lost and did not come back "
                          "within 8 s (connection refused)"));
  EXPECT_EQ(now - lost, Duration{8'000});
  EXPECT_THAT(names(core.on_connected(now)), ElementsAre("disconnect")) << "it is too late";
  die(SIGTERM);
  const auto actions = core.on_round_cleared(now);
  EXPECT_THAT(names(actions), ElementsAre("exit 71"));
  EXPECT_EQ(the<Exit>(actions).result.last_round, 4);
}

TEST_F(Agent, NumbersOfTheLatestRoundAreKept) {
  join();
  message(round_start(6, 2));
  message(wire::Finish{3, "why", "report"});
  die(SIGTERM);
  const auto result = the<Exit>(core.on_round_cleared(now)).result;
  EXPECT_EQ(result.last_round, 6);
  EXPECT_EQ(result.restarts, 2);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.summary, "why");
  EXPECT_EQ(result.report, "report");
}

}  // namespace
}  // namespace ddp::agent
