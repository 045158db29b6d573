// What an agent does in a round and at the end of the job, one rule a test.
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

TEST_F(Agent, AFailedWorkerIsReportedAndTheOthersGoOn) {
  run();
  WorkerExit exit = exit_of(1, 0, SIGKILL);
  exit.log_path = "/logs/x";
  exit.stderr_tail = {"last words"};
  exit.time_ms = 5;
  const auto actions = core.on_worker_exit(now, exit);
  EXPECT_THAT(names(actions), ElementsAre("failed"));
  const auto failed = the<wire::WorkerFailed>(actions);
  EXPECT_EQ(failed.round, 0);
  EXPECT_EQ(failed.failure.kind, "worker");
  EXPECT_EQ(failed.failure.node_id, "id1");
  EXPECT_EQ(failed.failure.host, "n1");
  EXPECT_EQ(failed.failure.group_rank, 1);
  EXPECT_EQ(failed.failure.rank, 4) << "first rank 3, local rank 1";
  EXPECT_EQ(failed.failure.pid, 101);
  EXPECT_EQ(failed.failure.status(), 137);
  EXPECT_EQ(failed.failure.log_path, "/logs/x");
  EXPECT_THAT(failed.failure.stderr_tail, ElementsAre("last words"));
  EXPECT_FALSE(failed.failure.secondary);
  // The last one ends well; the round has failed all the same, and nothing is said of success.
  EXPECT_THAT(names(ends(0, 0)), IsEmpty());
  EXPECT_THAT(names(message(wire::Stop{0, "why"})), ElementsAre("clear"));
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("stopped"));
}

TEST_F(Agent, ConsequencesOfAnotherFailureAreMarked) {
  run();
  EXPECT_TRUE(the<wire::WorkerFailed>(ends(0, kExitCollectiveFailed)).failure.secondary);
  WorkerExit said = exit_of(1, 1);
  said.secondary = true;
  said.message = "rank 0 is gone";
  const auto failure = the<wire::WorkerFailed>(core.on_worker_exit(now, said)).failure;
  EXPECT_TRUE(failure.secondary);
  EXPECT_EQ(failure.message, "rank 0 is gone");
}

TEST_F(Agent, AllWorkersEndedWellIsSuccessOnceTheRoundIsCleared) {
  run();
  EXPECT_THAT(names(ends(0, 0)), IsEmpty());
  EXPECT_THAT(names(ends(1, 0)), ElementsAre("clear"));
  EXPECT_EQ(the<wire::Succeeded>(core.on_round_cleared(now)).round, 0);
  const auto actions = message(wire::Finish{0, "all is well", ""});
  EXPECT_THAT(names(actions), ElementsAre("disconnect", "exit 0"));
  EXPECT_EQ(the<Exit>(actions).result.last_round, 0);
}

class AgentWithABarrier : public Agent {
 protected:
  AgentWithABarrier() : Agent(limited()) {}
  static config::JobSpec limited() {
    config::JobSpec job = spec(2);
    job.exit_barrier_ms = 700;
    return job;
  }
  void succeed() {
    run();
    ends(0, 0);
    ends(1, 0);
    EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("succeeded"));
  }
  // Heartbeats on the way there.
  std::vector<Action> after(Duration time) {
    const TimePoint end = now + time;
    std::vector<Action> last;
    while (now < end) {
      now = std::min(end, now + Duration{100});
      last = core.on_tick(now);
    }
    return last;
  }
};

TEST_F(AgentWithABarrier, LeavesTheOthersWhenItsTimeIsOver) {
  succeed();
  EXPECT_LE(*core.next_deadline(), now + Duration{700});
  EXPECT_THAT(names(after(Duration{600})), testing::IsEmpty());
  EXPECT_THAT(names(after(Duration{100})), ElementsAre("print", "leave", "disconnect", "exit 0"));
}

TEST_F(AgentWithABarrier, DoesNotLeaveARoundThatIsRunAgain) {
  succeed();
  EXPECT_THAT(names(message(wire::Stop{0, "rank 0 failed"})), ElementsAre("stopped"));
  EXPECT_THAT(names(message(round_start(1, 1))), ElementsAre("spawn 1"));
  EXPECT_THAT(names(after(Duration{900})), testing::IsEmpty());
}

// The coordinator does not know of the success: to it, the node would be lost.
TEST_F(AgentWithABarrier, DoesNotLeaveWhileTheCoordinatorIsAway) {
  succeed();
  core.on_disconnected(now);
  EXPECT_THAT(names(after(Duration{900})), testing::IsEmpty());
  core.on_connected(now);
  EXPECT_THAT(names(message(wire::Welcome{1'000, 5'000})), ElementsAre("succeeded"));
  EXPECT_THAT(names(core.on_tick(now)), ElementsAre("print", "leave", "disconnect", "exit 0"));
}

TEST_F(Agent, WaitsForTheOthersAsLongAsItTakes) {
  run();
  ends(0, 0);
  ends(1, 0);
  core.on_round_cleared(now);
  now += Duration{3'600'000};
  EXPECT_THAT(names(core.on_tick(now)), ElementsAre("heartbeat"));
}

TEST_F(Agent, AWorkerThatCannotBeStartedIsReported) {
  run();
  const auto actions = core.on_spawn_failed(now, 0, 127, "no such program");
  const auto failure = the<wire::WorkerFailed>(actions).failure;
  EXPECT_EQ(failure.kind, "start");
  EXPECT_EQ(failure.exit_code, 127);
  EXPECT_EQ(failure.rank, 3);
  EXPECT_EQ(failure.message, "no such program");
  message(wire::Stop{0, "why"});
  EXPECT_THAT(names(ends(1, 0, SIGTERM)), ElementsAre("clear"));
}

TEST_F(Agent, StopsWithSigtermThenSigkill) {
  run();
  EXPECT_THAT(names(message(wire::Stop{0, "node x joined"})),
              ElementsAre("signal 15: node x joined"));
  EXPECT_THAT(names(ends(0, 0, SIGTERM)), IsEmpty());
  std::vector<std::string> kills;
  while (now < TimePoint{Duration{1'005'000}}) {
    for (const std::string& name : names(tick_at_deadline())) {
      if (name == "kill") kills.push_back(name);
    }
  }
  EXPECT_THAT(kills, ElementsAre("kill")) << "after the stop timeout of 5 s";
  while (now < TimePoint{Duration{1'006'000}}) {
    for (const std::string& name : names(tick_at_deadline())) {
      if (name == "kill") kills.push_back(name);
    }
  }
  EXPECT_THAT(kills, ElementsAre("kill", "kill")) << "and again, as processes may have forked";
  EXPECT_THAT(names(ends(1, 0, SIGKILL)), ElementsAre("clear"));
  const auto stopped = the<wire::Stopped>(core.on_round_cleared(now, {"rank 0 waits"}));
  EXPECT_EQ(stopped.round, 0);
  EXPECT_THAT(stopped.failures, IsEmpty());
  EXPECT_THAT(stopped.operations, ElementsAre("rank 0 waits"));
}

struct EndCase {
  int exit_code;
  int signal;
  bool failure;
};
class EndDuringStop : public Agent, public ::testing::WithParamInterface<EndCase> {};

TEST_P(EndDuringStop, IsAFailureOnlyIfItIsTheWorkersOwn) {
  run();
  message(wire::Stop{0, "why"});
  ends(0, GetParam().exit_code, GetParam().signal);
  ends(1, 0, SIGTERM);
  EXPECT_EQ(the<wire::Stopped>(core.on_round_cleared(now)).failures.size(),
            GetParam().failure ? 1u : 0u);
}
INSTANTIATE_TEST_SUITE_P(, EndDuringStop,
                         ::testing::Values(EndCase{0, 0, false}, EndCase{0, SIGTERM, false},
                                           EndCase{0, SIGKILL, false}, EndCase{143, 0, false},
                                           EndCase{137, 0, false}, EndCase{73, 0, false},
                                           EndCase{1, 0, true}, EndCase{0, SIGSEGV, true},
                                           EndCase{65, 0, true}, EndCase{130, 0, true}));

TEST_F(Agent, StopAfterSuccessIsAnsweredAtOnce) {
  run();
  ends(0, 0);
  ends(1, 0);
  core.on_round_cleared(now);
  EXPECT_THAT(names(message(wire::Stop{0, "why"})), ElementsAre("stopped"));
}

TEST_F(Agent, SuccessThatCrossesAStopIsReportedAsSuch) {
  run();
  ends(0, 0);
  EXPECT_THAT(names(ends(1, 0)), ElementsAre("clear"));
  EXPECT_THAT(names(message(wire::Stop{0, "why"})), IsEmpty());
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("succeeded", "stopped"));
}

TEST_F(Agent, OrdersForAnotherRoundAreIgnored) {
  run(3);
  EXPECT_THAT(names(message(wire::Stop{2, "old"})), IsEmpty());
  EXPECT_THAT(names(message(wire::Stop{4, "not yet"})), IsEmpty());
  EXPECT_THAT(names(message(round_start(3))), IsEmpty());
  EXPECT_THAT(names(message(round_start(2))), IsEmpty());
}

TEST_F(Agent, ARoundWithoutAPlaceForThisNodeIsIgnored) {
  join();
  wire::RoundStart start = round_start(0);
  start.group_rank = 2;
  EXPECT_THAT(names(message(start)), ElementsAre("print"));
  start.group_rank = -1;
  EXPECT_THAT(names(message(start)), ElementsAre("print"));
  EXPECT_THAT(names(message(round_start(0))), ElementsAre("spawn 0"));
}

TEST_F(Agent, ARoundThatComesOverALiveOneWaitsForItsEnd) {
  run(0);
  EXPECT_THAT(names(message(round_start(1))), ElementsAre("signal 15: round 1 begins"));
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("spawn 1"));
}

TEST_F(Agent, ARoundStoppedBeforeItsTurnIsNotSpawned) {
  run(0);
  message(round_start(1));
  message(wire::Stop{1, "why"});
  ends(0, 1);
  EXPECT_THAT(names(ends(1, 0, SIGTERM)), ElementsAre("clear"));
  const auto stopped = the<wire::Stopped>(core.on_round_cleared(now, {"rank 0 waits"}));
  EXPECT_EQ(stopped.round, 1);
  EXPECT_THAT(stopped.failures, IsEmpty()) << "the failure belongs to round 0";
  EXPECT_THAT(stopped.operations, IsEmpty());
}

TEST_F(Agent, FinishEndsWhatStillRunsFirst) {
  run();
  EXPECT_THAT(names(message(wire::Finish{130, "interrupted", ""})),
              ElementsAre("signal 15: the job is over: interrupted"));
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("disconnect", "exit 130"));
  EXPECT_THAT(names(message(round_start(5))), IsEmpty());
  EXPECT_THAT(names(core.on_tick(now + Duration{60'000})), IsEmpty());
  EXPECT_THAT(names(core.on_signal(now, SIGTERM)), IsEmpty());
}

TEST_F(Agent, AFinishThatTheConnectionDoesNotOutliveStillCounts) {
  run();
  message(wire::Finish{5, "why", ""});
  EXPECT_THAT(names(core.on_disconnected(now)), IsEmpty());
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("exit 5"));
}

TEST_F(Agent, TheUsersSignalGoesToTheWorkersAndTheNodeLeaves) {
  run();
  EXPECT_THAT(names(core.on_signal(now, SIGINT)), ElementsAre("signal 2"));
  EXPECT_THAT(names(message(wire::Stop{0, "others fail"})), IsEmpty());
  EXPECT_THAT(names(ends(0, 0, SIGINT)), IsEmpty());
  EXPECT_THAT(names(ends(1, 130)), ElementsAre("clear"));
  const auto actions = core.on_round_cleared(now);
  EXPECT_THAT(names(actions), ElementsAre("leave", "disconnect", "exit 130"));
  EXPECT_EQ(the<wire::Leave>(actions).reason, "node n1 was stopped by SIGINT");
}

TEST_F(Agent, ASecondSignalKillsAtOnce) {
  run();
  core.on_signal(now, SIGTERM);
  EXPECT_THAT(names(core.on_signal(now + Duration{3'000}, SIGTERM)), ElementsAre("kill"));
}

TEST_F(Agent, ASecondCtrlCKillsAtOnce) {
  run();
  core.on_signal(now, SIGINT);
  EXPECT_THAT(names(core.on_signal(now, SIGINT)), ElementsAre("kill"));
}

// As from `systemctl stop`, which reaches the agent by itself and through ddp-run.
TEST_F(Agent, ASignalThatComesTwiceIsOneRequest) {
  run();
  EXPECT_THAT(names(core.on_signal(now, SIGTERM)), ElementsAre("signal 15"));
  EXPECT_THAT(names(core.on_signal(now + Duration{2'999}, SIGHUP)), IsEmpty());
  die(SIGTERM);
  core.on_snapshots(now, 1);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("leave", "disconnect", "print"));
}

// A scheduler ends all nodes, and another one's end has been told to this one a moment before.
TEST_F(Agent, ASignalJustAfterTheEndOfTheJobIsTheSameRequest) {
  run();
  message(wire::Finish{143, "node n0 was stopped by SIGTERM", ""});
  EXPECT_THAT(names(core.on_signal(now + Duration{1'000}, SIGTERM)), IsEmpty());
  EXPECT_THAT(names(core.on_signal(now + Duration{2'999}, SIGINT)), IsEmpty());
  EXPECT_THAT(names(core.on_signal(now + Duration{3'000}, SIGTERM)), ElementsAre("kill"));
}

TEST_F(Agent, ASignalDuringAStopReachesTheWorkers) {
  run();
  message(wire::Stop{0, "why"});
  EXPECT_THAT(names(core.on_signal(now, SIGINT)), ElementsAre("signal 2"));
  die(SIGINT);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("leave", "disconnect", "exit 130"));
}

TEST_F(Agent, ASignalWithoutWorkersEndsAtOnce) {
  core.start(now);
  EXPECT_THAT(names(core.on_signal(now, SIGTERM)), ElementsAre("exit 143")) << "while connecting";
  AgentCore other(spec(1), kNoRound, 0);
  other.start(now);
  other.on_connected(now);
  other.on_message(now, wire::Welcome{});
  EXPECT_THAT(names(other.on_signal(now, SIGHUP)), ElementsAre("leave", "disconnect", "exit 129"));
}

TEST_F(Agent, WithoutDdpRunEverythingIsKilledAtOnce) {
  run();
  EXPECT_THAT(names(core.on_parent_lost(now)), ElementsAre("kill", "clear"));
  EXPECT_THAT(names(ends(0, 0, SIGKILL)), IsEmpty());
  EXPECT_THAT(names(ends(1, 0, SIGKILL)), IsEmpty());
  // No leave: the node did not go of its own will, and another ddp-run may come.
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("disconnect", "exit 70"));
}

TEST_F(Agent, WithoutDdpRunAnIdleAgentExits) {
  join();
  EXPECT_THAT(names(core.on_parent_lost(now)), ElementsAre("disconnect", "exit 70"));
}

TEST_F(Agent, WithoutDdpRunAStopInProgressIsCutShort) {
  run();
  message(wire::Stop{0, "why"});
  EXPECT_THAT(names(core.on_parent_lost(now)), ElementsAre("kill", "clear"));
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("disconnect", "exit 70"));
}

}  // namespace
}  // namespace ddp::agent
