// Workers that keep their process from round to round, commits, and workers that hang; one rule a
// test.
#include <cmath>
#include <csignal>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.h"
#include "tests/unit/agent/agent_harness.h"

namespace ddp::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(Agent, ReconfigurableWorkersParkAndTakePartInTheNextRound) {
  run_reconfigurable();
  EXPECT_THAT(names(message(wire::Stop{0, "node x was lost"})),
              ElementsAre("signal 15: node x was lost but 0 1"));
  EXPECT_THAT(names(core.on_worker_parked(now, 1, 0, 6)), IsEmpty());
  EXPECT_THAT(names(core.on_worker_parked(now, 0, 0, 7)), ElementsAre("clear but 0 1"));
  const auto stopped = the<wire::Stopped>(core.on_round_cleared(now));
  EXPECT_EQ(stopped.parked, 2);
  EXPECT_EQ(stopped.step, 7);
  EXPECT_TRUE(stopped.reports_progress);
  EXPECT_THAT(stopped.failures, IsEmpty());
  EXPECT_THAT(names(message(round_start(1))), ElementsAre("spawn 1"));
  EXPECT_THAT(names(core.on_worker_parked(now, 0, 0, 7)), IsEmpty()) << "of the old round";
  // They said hello long ago, but the shell tells it for each round.
  EXPECT_THAT(names(message(wire::Stop{1, "why"})), ElementsAre("signal 15: why"));
}

TEST_F(Agent, WhoIsNotReconfigurableEndsWhileOthersPark) {
  run();
  core.on_worker_hello(now, 0, true);
  core.on_worker_hello(now, 1, false);
  EXPECT_THAT(names(message(wire::Stop{0, "why"})), ElementsAre("signal 15: why but 0"));
  core.on_worker_parked(now, 0, 0, -1);
  EXPECT_THAT(names(ends(1, 0, SIGTERM)), ElementsAre("clear but 0"));
}

TEST_F(Agent, WhoEndsInsteadOfParkingHasFailedByItself) {
  run_reconfigurable();
  message(wire::Stop{0, "rank 0 left the round"});
  core.on_worker_parked(now, 0, 0, 3);
  EXPECT_THAT(names(ends(1, 0, SIGKILL)), ElementsAre("clear but 0"));
  const auto stopped = the<wire::Stopped>(core.on_round_cleared(now));
  ASSERT_EQ(stopped.failures.size(), 1u);
  EXPECT_EQ(stopped.failures[0].signal, SIGKILL) << "it had no signal of ours";
}

TEST_F(Agent, TellsWhetherItsWorkersHaveMetTheOthers) {
  const auto meeting = [&] {
    now += Duration{5'000};
    return the<wire::Heartbeat>(core.on_tick(now)).meeting;
  };
  run();
  EXPECT_FALSE(meeting()) << "of workers that have said nothing, nothing is known";
  core.on_worker_hello(now, 0, true);
  core.on_worker_hello(now, 1, false);
  EXPECT_TRUE(meeting());
  core.on_worker_joined(0, 3);
  EXPECT_TRUE(meeting()) << "of another round";
  core.on_worker_joined(0, 0);
  EXPECT_FALSE(meeting());
}

TEST_F(Agent, AStepShowsThatItsWorkersHaveMetTheOthers) {
  run_reconfigurable();
  now += Duration{5'000};
  EXPECT_TRUE(the<wire::Heartbeat>(core.on_tick(now)).meeting);
  core.on_worker_progress(now, 1, 0);
  now += Duration{5'000};
  EXPECT_FALSE(the<wire::Heartbeat>(core.on_tick(now)).meeting);
}

TEST_F(Agent, WorkersThatMeetAtAStoreOfTheirOwnDoNotNeedTheRendezvous) {
  wire::RoundStart start = round_start(0);
  start.store_port = 4711;
  join();
  message(start);
  core.on_worker_hello(now, 0, true);
  now += Duration{5'000};
  EXPECT_FALSE(the<wire::Heartbeat>(core.on_tick(now)).meeting);
}

TEST_F(Agent, AFreshStartEndsEverybody) {
  run_reconfigurable();
  EXPECT_THAT(names(message(wire::Stop{0, "why", false})), ElementsAre("signal 15: why"));
  EXPECT_THAT(names(core.on_worker_parked(now, 0, 0, 3)), IsEmpty()) << "too late for that";
  die(SIGTERM);
  EXPECT_EQ(the<wire::Stopped>(core.on_round_cleared(now)).parked, 0);
}

TEST_F(Agent, WhoDoesNotParkInTimeIsEnded) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  core.on_worker_parked(now, 1, 0, 3);
  now += Duration{4'999};
  core.on_tick(now);
  now += Duration{1};
  EXPECT_THAT(names(core.on_tick(now)), ElementsAre("signal 15 but 1"));
  EXPECT_THAT(names(core.on_worker_parked(now, 0, 0, 3)), IsEmpty()) << "it has its SIGTERM";
  now += Duration{5'000};
  EXPECT_THAT(names(core.on_tick(now)), ElementsAre("kill but 1", "heartbeat"));
  EXPECT_THAT(names(ends(0, 0, SIGKILL)), ElementsAre("clear but 1"));
  EXPECT_EQ(the<wire::Stopped>(core.on_round_cleared(now)).parked, 1);
}

TEST_F(Agent, AWorkerThatParksByItselfSaysThatTheRoundIsBroken) {
  run_reconfigurable();
  const auto failure = the<wire::WorkerFailed>(core.on_worker_parked(now, 1, 0, 3)).failure;
  EXPECT_EQ(failure.kind, "collective");
  EXPECT_EQ(failure.rank, 4);
  EXPECT_TRUE(failure.secondary);
  EXPECT_THAT(names(core.on_worker_parked(now, 0, 0, 3)), ElementsAre("failed"));
  EXPECT_THAT(names(message(wire::Stop{0, "why"})), ElementsAre("clear but 0 1"))
      << "nobody is left who needs to be told";
}

TEST_F(Agent, AParkedWorkerThatEndsIsReplacedWithoutAFailure) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  core.on_worker_parked(now, 0, 0, 3);
  core.on_worker_parked(now, 1, 0, 3);
  core.on_round_cleared(now);
  const auto actions = ends(0, 0, SIGKILL);
  EXPECT_THAT(names(actions), ElementsAre("print"));
  EXPECT_EQ(the<Print>(actions).text,
            "the worker with local rank 0 ended while it waited for the next round: SIGKILL; "
            "another takes its place");
  EXPECT_THAT(names(ends(0, 0, SIGKILL)), IsEmpty());
  EXPECT_THAT(names(message(round_start(1))), ElementsAre("spawn 1"));
}

TEST_F(Agent, ParkedWorkersEndWithTheJob) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  core.on_worker_parked(now, 0, 0, 3);
  core.on_worker_parked(now, 1, 0, 3);
  core.on_round_cleared(now);
  EXPECT_THAT(names(message(wire::Finish{9, "all is lost", ""})),
              ElementsAre("signal 15: the job is over: all is lost"));
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("disconnect", "exit 9"));
}

TEST_F(Agent, AFinishDuringParkingEndsThoseThatHaveParked) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  core.on_worker_parked(now, 0, 0, 3);
  EXPECT_THAT(names(message(wire::Finish{9, "all is lost", ""})),
              ElementsAre("signal 15: the job is over: all is lost"));
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("disconnect", "exit 9"));
}

TEST_F(Agent, AFinishDuringTheClearingEndsThoseThatHaveParked) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  core.on_worker_parked(now, 0, 0, 3);
  core.on_worker_parked(now, 1, 0, 3);
  EXPECT_THAT(names(message(wire::Finish{9, "all is lost", ""})), IsEmpty());
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("signal 15: all is lost"));
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("disconnect", "exit 9"));
}

TEST_F(Agent, TheUsersSignalReachesParkedWorkers) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  core.on_worker_parked(now, 0, 0, 3);
  EXPECT_THAT(names(core.on_signal(now, SIGINT)), ElementsAre("signal 2"));
  die(SIGINT);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("leave", "disconnect", "exit 130"));
}

TEST_F(Agent, ParkedWorkersOutliveALostConnection) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  core.on_worker_parked(now, 0, 0, 3);
  core.on_disconnected(now);
  EXPECT_THAT(names(core.on_worker_parked(now, 1, 0, 3)), ElementsAre("clear but 0 1"));
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("connect+0"));
  EXPECT_EQ(the<wire::Join>(core.on_connected(now)).running_round, kNoRound);
}

// ---- commits ----

TEST_F(Agent, ACommitIsAskedOfThoseThatSaidHello) {
  run();
  core.on_worker_hello(now, 0, true);
  EXPECT_THAT(names(message(wire::CommitRound{0, 500, "node c comes"})),
              ElementsAre("commit 0 of 0"));
  EXPECT_THAT(names(core.on_worker_committed(now, 1, 0, 8)), IsEmpty()) << "was not asked";
  EXPECT_THAT(names(core.on_worker_committed(now, 0, 7, 8)), IsEmpty()) << "of another round";
  const auto committed = the<wire::NodeCommitted>(core.on_worker_committed(now, 0, 0, 8));
  EXPECT_EQ(committed.round, 0);
  EXPECT_EQ(committed.step, 8);
  EXPECT_THAT(names(core.on_worker_committed(now, 0, 0, 9)), IsEmpty());
}

TEST_F(Agent, TheLeastStepIsWhatANodeHasCommitted) {
  run_reconfigurable();
  EXPECT_EQ(the<RequestCommit>(message(wire::CommitRound{0, 500, ""})).deadline_ms, 500);
  EXPECT_THAT(names(core.on_worker_committed(now, 1, 0, 9)), IsEmpty());
  EXPECT_EQ(the<wire::NodeCommitted>(core.on_worker_committed(now, 0, 0, 8)).step, 8);
}

TEST_F(Agent, WhereNobodyCanCommitTheAnswerComesAtOnce) {
  run();
  EXPECT_THAT(names(message(wire::CommitRound{0, 500, ""})), ElementsAre("committed"));
  EXPECT_THAT(names(message(wire::CommitRound{3, 500, ""})), IsEmpty()) << "another round";
}

TEST_F(Agent, ARoundThatHasNotBegunHereOwesNoCommit) {
  run();
  core.on_worker_hello(now, 0, true);
  message(round_start(1));
  const auto committed = the<wire::NodeCommitted>(message(wire::CommitRound{1, 500, ""}));
  EXPECT_EQ(committed.round, 1);
  EXPECT_EQ(committed.step, -1);
  EXPECT_THAT(names(message(wire::CommitRound{0, 500, ""})), IsEmpty()) << "that is over";
}

TEST_F(Agent, AWorkerThatEndsOwesNoCommit) {
  run_reconfigurable();
  message(wire::CommitRound{0, 500, ""});
  core.on_worker_committed(now, 1, 0, 9);
  EXPECT_THAT(names(ends(0, 0, SIGKILL)), ElementsAre("failed", "committed"));
}

// ---- workers that hang ----

class Stalling : public Agent {
 protected:
  Stalling() : Agent(impatient()) { run_reconfigurable(); }
  static config::JobSpec impatient() {
    config::JobSpec job = spec(2);
    job.progress_timeout_ms = 30'000;
    return job;
  }
  std::vector<std::string> pass(Duration time) {
    const TimePoint end = now + time;
    std::vector<std::string> all;
    while (core.next_deadline() && *core.next_deadline() <= end) {
      for (const std::string& name : names(tick_at_deadline())) {
        if (name != "heartbeat") all.push_back(name);
      }
    }
    now = end;
    return all;
  }
};

TEST_F(Stalling, AWorkerWithoutProgressIsKilledAfterItsStacksAreWritten) {
  core.on_worker_progress(now, 0, 1);
  EXPECT_THAT(pass(Duration{29'999}), IsEmpty());
  EXPECT_THAT(pass(Duration{1}), ElementsAre("find hung of 0"));
  EXPECT_THAT(pass(Duration{90'000}), IsEmpty()) << "the answer is awaited";
  EXPECT_THAT(names(core.on_hung_workers(now, {0})),
              ElementsAre("dump 0", "kill 0: no progress for 30 s; its stacks are in its log"));
  WorkerExit exit = exit_of(0, 0, SIGKILL);
  exit.cause = "no progress for 30 s; its stacks are in its log";
  exit.secondary = true;  // What it said before does not count.
  const auto failure = the<wire::WorkerFailed>(core.on_worker_exit(now, exit)).failure;
  EXPECT_FALSE(failure.secondary);
  EXPECT_EQ(failure.cause, exit.cause);
}

TEST_F(Stalling, HeartbeatsCarryWhatTheFirstWorkerMeasures) {
  const auto heartbeat = [&](std::int64_t step) {
    core.on_worker_progress(now, 0, step);
    now += Duration{1'000};
    return the<wire::Heartbeat>(core.on_tick(now));
  };
  EXPECT_TRUE(std::isnan(heartbeat(1).loss));
  core.on_worker_metrics(1, {1, 0.5, 10, 300});
  EXPECT_EQ(heartbeat(2).loss, 0.5);
  core.on_worker_metrics(0, {1, 0.25, 20, 200});
  core.on_worker_metrics(1, {1, 0.5, 10, 300});
  EXPECT_EQ(heartbeat(3).loss, 0.25);
  EXPECT_EQ(heartbeat(3).samples_per_second, 20);
  EXPECT_EQ(heartbeat(3).total_steps, 200);
  core.on_worker_metrics(7, {1, 1, 1, 1});  // No worker of this node.
  EXPECT_EQ(heartbeat(4).loss, 0.25);
}

TEST_F(Stalling, HeartbeatsSayThatTheLossIsNoNumber) {
  const auto told = [&](std::int64_t step) {
    core.on_worker_progress(now, 0, step);
    now += Duration{1'000};
    const auto sent = wire::encode(wire::AgentMessage(the<wire::Heartbeat>(core.on_tick(now))));
    return nlohmann::json::parse(sent);
  };
  EXPECT_FALSE(told(1).contains("loss_is")) << "not known is not NaN";
  const auto decoded = [](double loss) {
    const wire::WorkerMessage sent = wire::Progress{.step = 2, .loss = loss};
    return std::get<wire::Progress>(wire::decode_worker_message(wire::encode(sent)).value());
  };
  core.on_worker_metrics(0, decoded(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(told(2).at("loss_is"), "NaN");
  EXPECT_FALSE(told(2).contains("loss"));
  core.on_worker_metrics(0, decoded(-std::numeric_limits<double>::infinity()));
  EXPECT_EQ(told(3).at("loss_is"), "-inf");
  core.on_worker_metrics(0, decoded(0.5));
  EXPECT_FALSE(told(4).contains("loss_is"));
}

TEST_F(Stalling, HeartbeatsCarryHowLongEachWorkerHasComputed) {
  const auto heartbeat = [&] {
    now += Duration{1'000};
    return the<wire::Heartbeat>(core.on_tick(now));
  };
  EXPECT_THAT(heartbeat().computed, IsEmpty());
  core.on_worker_metrics(1, {.step = 3, .computed_ms = 250});
  core.on_worker_metrics(1, {.step = 4, .computed_ms = 300.5});
  const auto computed = heartbeat().computed;
  ASSERT_EQ(computed.size(), 2u);
  EXPECT_EQ(computed[0].step, -1) << "it has told nothing";
  EXPECT_EQ(computed[1], (wire::Computed{.step = 4, .ms = 300.5}));
  core.on_worker_metrics(0, {.step = 4});  // Of a library that measures nothing.
  EXPECT_EQ(heartbeat().computed[0].step, -1);
}

TEST_F(Stalling, WhoNeverMadeProgressIsNotTimed) {
  EXPECT_THAT(pass(Duration{3'600'000}), IsEmpty());
}

TEST_F(Stalling, EveryStepGivesTimeAgain) {
  core.on_worker_progress(now, 0, 1);
  EXPECT_THAT(pass(Duration{20'000}), IsEmpty());
  core.on_worker_progress(now, 0, 2);
  EXPECT_THAT(pass(Duration{29'999}), IsEmpty());
}

TEST_F(Stalling, WhoWaitsForAnotherRankGetsAsMuchTimeAgain) {
  core.on_worker_progress(now, 0, 1);
  core.on_worker_progress(now, 1, 1);
  EXPECT_THAT(pass(Duration{30'000}), ElementsAre("find hung of 0 1"));
  EXPECT_THAT(names(core.on_hung_workers(now, {})), IsEmpty());
  EXPECT_THAT(pass(Duration{29'999}), IsEmpty());
  EXPECT_THAT(pass(Duration{1}), ElementsAre("find hung of 0 1"));
  core.on_worker_progress(now, 1, 2);
  EXPECT_THAT(names(core.on_hung_workers(now, {0, 1})),
              ElementsAre("dump 0", "kill 0: no progress for 30 s; its stacks are in its log"))
      << "rank 1 has come to a step meanwhile";
}

TEST_F(Stalling, AHungWorkersEndIsTheCauseAlsoIfTheRoundStopsMeanwhile) {
  core.on_worker_progress(now, 0, 1);
  pass(Duration{30'000});
  core.on_hung_workers(now, {0});
  message(wire::Stop{0, "others left the round"});
  core.on_worker_parked(now, 1, 0, 1);
  EXPECT_THAT(names(ends(0, 0, SIGKILL)), ElementsAre("clear but 1"));
  EXPECT_EQ(the<wire::Stopped>(core.on_round_cleared(now)).failures.size(), 1u);
}

TEST_F(Agent, TheFirstStepOfARoundIsToldAtOnce) {
  run();
  EXPECT_THAT(names(core.on_worker_progress(now, 0, 5)), ElementsAre("heartbeat"));
  EXPECT_THAT(names(core.on_worker_progress(now, 0, 6)), IsEmpty());
}

}  // namespace
}  // namespace ddp::agent
