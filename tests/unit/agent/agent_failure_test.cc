// The time of a failure, and which failures are reported although the round is being stopped.
#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/unit/agent/agent_harness.h"

namespace ddp::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// It raised `age` ago and has taken that long to exit.
WorkerExit raised(int local_rank, int exit_code, int signal, Duration age) {
  WorkerExit exit = exit_of(local_rank, exit_code, signal);
  exit.has_error_file = true;
  exit.age = age;
  exit.time_ms = 77;
  exit.message = "ValueError: bad batch";
  exit.callstack = "Traceback";
  exit.cause = "ddp-run sent SIGTERM because the round ended";
  return exit;
}

// Worker 0 has failed, and the round is stopped because of that.
class StoppedAgent : public Agent {
 protected:
  StoppedAgent() {
    run();
    EXPECT_THAT(names(ends(0, 3)), ElementsAre("failed"));
    EXPECT_THAT(names(message(wire::Stop{0, "why"})), ElementsAre("signal 15: why"));
  }
  // The failures that the node's answer to the stop tells, worker 1 having ended like this.
  std::vector<wire::Failure> told_after(const WorkerExit& exit) {
    EXPECT_THAT(names(core.on_worker_exit(now, exit)), ElementsAre("clear"));
    return the<wire::Stopped>(core.on_round_cleared(now)).failures;
  }
};

TEST_F(Agent, AFailureIsAsOldAsItsErrorFileWhenItIsSent) {
  run();
  const auto failed =
      the<wire::WorkerFailed>(core.on_worker_exit(now, raised(0, 1, 0, Duration{900})));
  EXPECT_EQ(failed.failure.age_ms, 900);
  EXPECT_EQ(failed.failure.time_ms, 77);
  EXPECT_TRUE(failed.failure.own_time);
  EXPECT_FALSE(failed.failure.was_ending);
  EXPECT_EQ(the<wire::WorkerFailed>(ends(1, 1)).failure.age_ms, 0);
}

TEST_F(Agent, AFailureThatIsToldAgainHasGrownOlder) {
  run();
  core.on_worker_exit(now, raised(0, 1, 0, Duration{900}));
  core.on_disconnected(now);
  now += Duration{2'000};
  core.on_connected(now);
  const auto failed = the<wire::WorkerFailed>(message(wire::Welcome{1'000, 5'000}));
  EXPECT_EQ(failed.failure.age_ms, 2'900);
}

TEST_F(Agent, WhatBearsATimeSaysWhenItWasSent) {
  run();
  const auto clock = [this] {
    return std::chrono::duration_cast<Duration>(now.time_since_epoch()).count();
  };
  now += Duration{1'000};
  EXPECT_EQ(the<wire::Heartbeat>(core.on_tick(now)).sent_ms, clock());
  now += Duration{30};
  EXPECT_EQ(the<wire::WorkerFailed>(ends(0, 3)).sent_ms, clock());
  message(wire::Stop{0, "why"});
  core.on_worker_exit(now, raised(1, 0, SIGTERM, Duration{500}));
  now += Duration{20};
  EXPECT_EQ(the<wire::Stopped>(core.on_round_cleared(now)).sent_ms, clock());
}

// Rank 1 raised, rank 0 died of that, and the stop found rank 1 in what it does at its exit.
TEST_F(StoppedAgent, AWorkerThatHadFailedBeforeIsToldOf) {
  now += Duration{40};
  const auto told = told_after(raised(1, 0, SIGTERM, Duration{500}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank, 4);
  EXPECT_EQ(told[0].message, "ValueError: bad batch");
  EXPECT_EQ(told[0].callstack, "Traceback");
  EXPECT_EQ(told[0].age_ms, 500);
  EXPECT_TRUE(told[0].was_ending);
  EXPECT_FALSE(told[0].secondary);
  // Python's status after an exception; SIGTERM came from us.
  EXPECT_EQ(told[0].status(), 1);
  EXPECT_EQ(told[0].cause, "");
}

TEST_F(StoppedAgent, ItsOwnStatusStaysWhereItEndedByItself) {
  now += Duration{40};
  const auto told = told_after(raised(1, 9, 0, Duration{500}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].status(), 9);
  EXPECT_FALSE(told[0].was_ending);
}

TEST_F(StoppedAgent, AWorkerThatFailedOfTheStopIsNot) {
  now += Duration{1'000};
  EXPECT_THAT(told_after(raised(1, 0, SIGTERM, Duration{900})), IsEmpty());
}

TEST_F(StoppedAgent, TheTicksOfTheFileClockHideNoFailure) {
  now += Duration{1'000};
  EXPECT_EQ(told_after(raised(1, 0, SIGTERM, Duration{993})).size(), 1u);
}

TEST_F(StoppedAgent, AWorkerWithoutAnErrorFileIsNot) {
  now += Duration{40};
  WorkerExit exit = raised(1, 0, SIGTERM, Duration{0});
  exit.has_error_file = false;
  EXPECT_THAT(told_after(exit), IsEmpty());
}

TEST_F(StoppedAgent, AConsequenceOfAnotherRanksFailureIsNot) {
  now += Duration{40};
  WorkerExit exit = raised(1, 0, SIGTERM, Duration{500});
  exit.secondary = true;
  EXPECT_THAT(told_after(exit), IsEmpty());
}

class WideAgent : public Agent {
 protected:
  WideAgent() : Agent(spec(40)) {}
};

// All of them have raised, and each callstack may be long: a message has its limit.
TEST_F(WideAgent, NotAllFailuresAreToldInFull) {
  run();
  ends(0, 3);
  message(wire::Stop{0, "why"});
  for (int local_rank = 1; local_rank < 40; ++local_rank)
    core.on_worker_exit(now, raised(local_rank, 0, SIGTERM, Duration{500}));
  const auto told = the<wire::Stopped>(core.on_round_cleared(now)).failures;
  ASSERT_EQ(told.size(), 39u);
  EXPECT_EQ(told[31].callstack, "Traceback");
  EXPECT_EQ(told[32].callstack, "");
  EXPECT_EQ(told[38].message, "ValueError: bad batch");
}

TEST_F(StoppedAgent, TheAgeGrowsWhileTheRoundIsCleared) {
  now += Duration{40};
  EXPECT_THAT(names(core.on_worker_exit(now, raised(1, 0, SIGTERM, Duration{500}))),
              ElementsAre("clear"));
  now += Duration{60};
  EXPECT_EQ(the<wire::Stopped>(core.on_round_cleared(now)).failures.at(0).age_ms, 560);
}

}  // namespace
}  // namespace ddp::agent
