// Workers that do not end, whatever signal they get.
#include <algorithm>
#include <csignal>

#include "tests/unit/agent/agent_harness.h"

namespace ddp::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

WorkerExit stuck(int local_rank) {
  WorkerExit exit = exit_of(local_rank, 0, SIGKILL);
  exit.cause = "stuck";
  return exit;
}

TEST_F(Agent, WhomSigkillDoesNotEndIsGivenUp) {
  run();
  message(wire::Stop{0, "why"});
  ends(1, 0, SIGTERM);
  const TimePoint stopped = now;
  std::vector<Action> actions;
  int kills = 0;
  for (bool cleared = false; !cleared && now < stopped + Duration(60'000);) {
    actions = tick_at_deadline();
    const std::vector<std::string> done = names(actions);
    kills += static_cast<int>(std::count(done.begin(), done.end(), "kill"));
    cleared = std::count(done.begin(), done.end(), "clear") > 0;
  }
  EXPECT_EQ(kills, 6);
  EXPECT_EQ(now, stopped + Duration(10'000)) << "--shutdown-timeout twice";
  EXPECT_EQ(the<ClearRound>(actions).killed_for, Duration(5'000));
  core.on_unkillable("worker 0 lives");
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("stopped"));
  // It ends after all.
  EXPECT_THAT(names(ends(0, 0, SIGKILL)), IsEmpty());
  core.on_unkillable("");
  EXPECT_THAT(names(message(round_start(1))), ElementsAre("spawn 1"));
}

struct Unkillable : Agent {
  // Round 0 is stopped, and SIGKILL does not end worker 0.
  void leave_one() {
    run();
    message(wire::Stop{0, "why"});
    ends(1, 0, SIGTERM);
    const auto is_clear = [](const std::string& name) { return name == "clear"; };
    for (std::vector<std::string> done; std::none_of(done.begin(), done.end(), is_clear);)
      done = names(tick_at_deadline());
    core.on_unkillable("worker 0 lives");
  }
};

TEST_F(Unkillable, TheNodeLeavesWhenItIsToStartOthers) {
  leave_one();
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("stopped"));
  const auto left = message(round_start(1));
  EXPECT_THAT(names(left), ElementsAre("leave", "disconnect", "exit 78"));
  EXPECT_THAT(the<wire::Leave>(left).reason, testing::HasSubstr("worker 0 lives"));
  EXPECT_EQ(the<Exit>(left).result.summary, the<wire::Leave>(left).reason);
}

TEST_F(Unkillable, ARoundThatWasOrderedMeanwhileIsLeft) {
  leave_one();
  message(round_start(1));
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("leave", "disconnect", "exit 78"));
}

TEST_F(Unkillable, TheJobsEndIsTheNodes) {
  leave_one();
  core.on_round_cleared(now);
  wire::Finish finish;
  finish.exit_code = 3;
  EXPECT_THAT(names(message(finish)), testing::Contains("exit 3"));
}

TEST(AgentStuck, WhoAsksForTheEndDoesNotWaitAsLongForWhatSigkillDoesNotEnd) {
  config::JobSpec job = spec(1);
  job.rules.stop_timeout_ms = 30'000;
  AgentCore core(job, kNoRound, 0);
  TimePoint now{Duration(0)};
  core.start(now);
  core.on_connected(now);
  core.on_message(now, wire::Welcome{});
  wire::RoundStart round = round_start(0);
  round.members = {{"id0", "n0", "10.0.0.1", 1, 0}, {"id1", "n1", "10.0.0.2", 1, 1}};
  core.on_message(now, round);
  core.on_signal(now, SIGTERM);
  now += Duration(3'000);
  EXPECT_THAT(names(core.on_signal(now, SIGTERM)), ElementsAre("kill"));
  now += Duration(4'999);
  EXPECT_THAT(names(core.on_tick(now)), testing::Not(testing::Contains("clear")));
  now += Duration(1'000);
  EXPECT_THAT(names(core.on_tick(now)), testing::Contains("clear"));
}

TEST_F(Agent, AWorkerInStateDIsAFailureAndDoesNotHoldTheStop) {
  run();
  const auto told = core.on_worker_stuck(now, stuck(0));
  EXPECT_THAT(names(told), ElementsAre("failed"));
  const wire::Failure failure = the<wire::WorkerFailed>(told).failure;
  EXPECT_EQ(failure.kind, "stuck");
  EXPECT_EQ(failure.pid, 100);
  EXPECT_EQ(failure.status(), 128 + SIGKILL);
  EXPECT_EQ(failure.cause, "stuck");
  EXPECT_FALSE(failure.secondary);
  EXPECT_THAT(names(core.on_worker_stuck(now, stuck(0))), IsEmpty()) << "once";
  EXPECT_THAT(names(message(wire::Stop{0, "why"})), ElementsAre("signal 15: why"));
  EXPECT_THAT(names(ends(1, 0, SIGTERM)), ElementsAre("kill", "clear"));
  EXPECT_THAT(the<wire::Stopped>(core.on_round_cleared(now)).failures, IsEmpty());
}

TEST_F(Agent, AWorkerThatGetsStuckWhileItIsStoppedDoesNotHoldTheStop) {
  run_reconfigurable();
  message(wire::Stop{0, "why"});
  EXPECT_THAT(names(core.on_worker_parked(now, 1, 0, 5)), IsEmpty());
  EXPECT_THAT(names(core.on_worker_stuck(now, stuck(0))), ElementsAre("kill but 1", "clear but 1"));
}

struct Hanging : Agent {
  static config::JobSpec job() {
    config::JobSpec job = spec(2);
    job.progress_timeout_ms = 1'000;
    return job;
  }
  Hanging() : Agent(job()) {}
};

TEST_F(Hanging, AWorkerWithoutProgressThatSigkillDoesNotEndIsAFailure) {
  run();
  core.on_worker_progress(now, 0, 1);
  now += Duration(1'000);
  EXPECT_THAT(names(core.on_tick(now)), testing::Contains("find hung of 0"));
  EXPECT_THAT(names(core.on_hung_workers(now, {0})), testing::Contains("dump 0"));
  now += Duration(29'999);
  EXPECT_THAT(names(core.on_tick(now)), testing::Not(testing::Contains("failed")));
  now += Duration(1);
  const auto told = core.on_tick(now);
  EXPECT_EQ(the<wire::WorkerFailed>(told).failure.kind, "stuck");
  EXPECT_EQ(the<wire::WorkerFailed>(told).failure.rank, 3);
  message(wire::Stop{0, "why"});
  EXPECT_THAT(names(ends(1, 0, SIGTERM)), ElementsAre("kill", "clear"));
}

}  // namespace
}  // namespace ddp::agent
