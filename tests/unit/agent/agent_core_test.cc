// What an agent does on each event, one rule a test.
#include "agent/core/agent_core.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"

namespace ddp::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An action as a short text, so that a test reads as the list of what is done.
struct Name {
  std::string operator()(const Connect& a) const {
    return "connect+" + std::to_string(a.delay.count());
  }
  std::string operator()(const Disconnect&) const { return "disconnect"; }
  std::string operator()(const SendToCoordinator& a) const {
    static const char* const kNames[] = {"join",      "heartbeat", "failed",
                                         "succeeded", "stopped",   "leave"};
    return kNames[a.message.index()];
  }
  std::string operator()(const SpawnWorkers& a) const {
    return "spawn " + std::to_string(a.round.round);
  }
  std::string operator()(const SignalWorkers& a) const {
    return "signal " + std::to_string(a.signal) +
           (a.abort_reason.empty() ? "" : ": " + a.abort_reason);
  }
  std::string operator()(const KillWorkers&) const { return "kill"; }
  std::string operator()(const ClearRound&) const { return "clear"; }
  std::string operator()(const Print&) const { return "print"; }
  std::string operator()(const Exit& a) const {
    return "exit " + std::to_string(a.result.exit_code);
  }
};

std::vector<std::string> names(const std::vector<Action>& actions) {
  std::vector<std::string> result;
  for (const Action& action : actions) result.push_back(std::visit(Name{}, action));
  return result;
}

// The first action or message of this type; a test failure where there is none.
template <typename T>
T the(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if constexpr (std::is_constructible_v<wire::AgentMessage, T>) {
      const auto* send = std::get_if<SendToCoordinator>(&action);
      const T* found = send == nullptr ? nullptr : std::get_if<T>(&send->message);
      if (found != nullptr) return *found;
    } else {
      if (const T* found = std::get_if<T>(&action)) return *found;
    }
  }
  ADD_FAILURE() << "no such action";
  return T{};
}

config::JobSpec spec(int nproc) {
  config::JobSpec job;
  job.job_id = "job";
  job.node_id = "id1";
  job.host = "n1";
  job.coordinator_host = "head";
  job.coordinator_port = 29'400;
  job.nproc = nproc;
  job.join_timeout_ms = 10'000;
  job.stop_timeout_ms = 5'000;
  job.coordinator_timeout_ms = 8'000;
  return job;
}

wire::RoundStart round_start(Round round, int restarts = 0) {
  wire::RoundStart start;
  start.round = round;
  start.restarts = restarts;
  start.group_rank = 1;
  start.world_size = 5;
  start.members = {{"id0", "n0", "10.0.0.1", 3, 0}, {"id1", "n1", "10.0.0.2", 2, 3}};
  return start;
}

WorkerExit exit_of(int local_rank, int exit_code, int signal = 0) {
  WorkerExit exit;
  exit.local_rank = local_rank;
  exit.pid = 100 + local_rank;
  exit.exit_code = exit_code;
  exit.signal = signal;
  return exit;
}

class Agent : public ::testing::Test {
 protected:
  explicit Agent(int nproc = 2) : core(spec(nproc), kNoRound, 0) {}

  void join() {
    core.start(now);
    core.on_connected(now);
    core.on_message(now, wire::Welcome{1'000, 5'000});
  }
  void run(Round round = 0) {
    join();
    EXPECT_THAT(names(message(round_start(round))), ElementsAre("spawn " + std::to_string(round)));
  }
  std::vector<Action> message(const wire::CoordinatorMessage& m) { return core.on_message(now, m); }
  std::vector<Action> ends(int local_rank, int exit_code, int signal = 0) {
    return core.on_worker_exit(now, exit_of(local_rank, exit_code, signal));
  }
  // Both workers end by the signal they were sent; the second end begins the clearing.
  void die(int signal) {
    EXPECT_THAT(names(ends(0, 0, signal)), IsEmpty());
    EXPECT_THAT(names(ends(1, 0, signal)), ElementsAre("clear"));
  }
  std::vector<Action> tick_at_deadline() {
    EXPECT_TRUE(core.next_deadline());
    now = *core.next_deadline();
    return core.on_tick(now);
  }

  TimePoint now{Duration{1'000'000}};
  AgentCore core;
};

// ---- connecting ----

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
  EXPECT_EQ(join.stop_timeout_ms, 5'000);
}

TEST_F(Agent, TriesAgainWithLongerAndLongerDelays) {
  core.start(now);
  for (const char* delay : {"50", "100", "200", "400", "800", "1000", "1000"}) {
    EXPECT_THAT(names(core.on_connect_failed(now, "connection refused")),
                ElementsAre(std::string("connect+") + delay));
  }
}

TEST_F(Agent, SaysAfterAWhileThatNobodyAnswers) {
  core.start(now);
  now += Duration{1'500};
  const auto actions = core.on_connect_failed(now, "connection refused");
  EXPECT_THAT(names(actions), ElementsAre("print", "connect+50"));
  EXPECT_EQ(the<Print>(actions).text,
            "the rendezvous head:29400 does not answer (connection refused); trying for 9 s more");
}

TEST_F(Agent, GivesUpAfterTheJoinTimeout) {
  core.start(now);
  core.on_connect_failed(now, "connection refused");
  const auto actions = tick_at_deadline();
  EXPECT_EQ(now, TimePoint{Duration{1'010'000}});
  EXPECT_THAT(names(actions), ElementsAre("exit 67"));
  EXPECT_THAT(
      the<Exit>(actions).result.summary,
      HasSubstr("--rdzv-endpoint head:29400: nobody answers after 10 s (connection refused)"));
  EXPECT_FALSE(core.next_deadline());
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

TEST_F(Agent, PrintsWhoIsMissingWhenThatChanges) {
  join();
  wire::Waiting waiting{1, 2, 2, {"n1"}, "1 of 2 nodes is in"};
  EXPECT_EQ(the<Print>(message(waiting)).text, "1 of 2 nodes is in");
  waiting.text = "the same with fewer seconds left";
  EXPECT_THAT(names(message(waiting)), IsEmpty());
  waiting.hosts = {"n2"};
  EXPECT_THAT(names(message(waiting)), ElementsAre("print"));
  now += Duration{30'000};
  EXPECT_THAT(names(message(waiting)), ElementsAre("print")) << "a long wait is not silent";
}

TEST_F(Agent, ARefusalIsTheEnd) {
  core.start(now);
  core.on_connected(now);
  const auto actions = message(wire::Refused{"job job is over"});
  EXPECT_THAT(names(actions), ElementsAre("disconnect", "exit 74"));
  EXPECT_THAT(the<Exit>(actions).result.summary, HasSubstr("job job is over"));
}

// ---- a round ----

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

// ---- losing the coordinator ----

TEST_F(Agent, ALostConnectionEndsTheRoundBeforeTheNodeJoinsAgain) {
  run(4);
  now += Duration{2'000};
  EXPECT_THAT(names(core.on_disconnected(now)),
              ElementsAre("print", "signal 15: the connection to the rendezvous is lost"));
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("connect+0"));
  const auto join = the<wire::Join>(core.on_connected(now));
  EXPECT_EQ(join.last_round, 4);
  EXPECT_THAT(names(core.on_message(now, wire::Welcome{})), IsEmpty())
      << "nothing is owed of round 4";
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
  die(SIGTERM);
  core.on_round_cleared(now);
  const TimePoint lost = now;
  core.on_connect_failed(now, "connection refused");
  const auto actions = tick_at_deadline();
  EXPECT_EQ(now - lost, Duration{8'000});
  EXPECT_THAT(names(actions), ElementsAre("exit 71"));
  EXPECT_THAT(
      the<Exit>(actions).result.summary,
      HasSubstr("head:29400 was lost and did not come back within 8 s (connection refused)"));
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

// ---- the end ----

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
  EXPECT_THAT(names(core.on_signal(now, SIGTERM)), ElementsAre("kill"));
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
