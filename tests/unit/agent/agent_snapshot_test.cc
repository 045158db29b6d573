// A node that still has snapshots of checkpoints to write does not exit; one rule a test.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/agent_harness.h"

namespace ddp::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(Agent, ANodeLeavesAndExitsWhenItsSnapshotsAreWritten) {
  run();
  EXPECT_THAT(names(core.on_snapshots(now, 2)), IsEmpty());
  message(wire::Finish{0, "done", "", ""});
  die(0);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("disconnect", "print"));
  EXPECT_EQ(core.next_deadline(), std::nullopt) << "what writes is bounded, not how long";
  EXPECT_THAT(names(core.on_snapshots(now, 1)), IsEmpty());
  const auto actions = core.on_snapshots(now, 0);
  EXPECT_THAT(names(actions), ElementsAre("exit 0"));
  EXPECT_FALSE(the<Exit>(actions).spare_writers);
  EXPECT_THAT(names(core.on_snapshots(now, 0)), IsEmpty());
}

TEST_F(Agent, ARoundEndsAndBeginsWhateverIsBeingWritten) {
  run();
  core.on_snapshots(now, 1);
  message(wire::Stop{0, "node x was lost"});
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("stopped"));
  EXPECT_THAT(names(message(round_start(1))), ElementsAre("spawn 1"));
}

TEST_F(Agent, OneSignalWaitsForWhatIsBeingWrittenASecondDoesNot) {
  run();
  core.on_snapshots(now, 1);
  core.on_signal(now, SIGTERM);
  die(SIGTERM);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("leave", "disconnect", "print"));
  const auto actions = core.on_signal(now + Duration{3'000}, SIGTERM);
  EXPECT_THAT(names(actions), ElementsAre("exit 143"));
  EXPECT_FALSE(the<Exit>(actions).spare_writers) << "they are given up";
}

TEST_F(Agent, TwoSignalsBeforeTheWorkersHaveEndedDoNotWaitEither) {
  run();
  core.on_snapshots(now, 1);
  core.on_signal(now, SIGINT);
  core.on_signal(now, SIGINT);
  die(SIGKILL);
  EXPECT_THAT(names(core.on_round_cleared(now)), ElementsAre("leave", "disconnect", "exit 130"));
}

TEST_F(Agent, TheFirstSignalAfterTheEndOfTheJobDoesNotLoseACheckpoint) {
  run();
  core.on_snapshots(now, 1);
  message(wire::Finish{0, "done", "", ""});
  die(0);
  core.on_round_cleared(now);
  EXPECT_THAT(names(core.on_signal(now + Duration{3'000}, SIGTERM)), IsEmpty());
  EXPECT_THAT(names(core.on_signal(now + Duration{6'000}, SIGTERM)), ElementsAre("exit 0"));
}

TEST_F(Agent, WithoutDdpRunItExitsAtOnceAndWhatWritesGoesOn) {
  run();
  core.on_snapshots(now, 1);
  core.on_parent_lost(now);
  const auto actions = core.on_round_cleared(now);
  EXPECT_THAT(names(actions), ElementsAre("disconnect", "exit 70"));
  EXPECT_TRUE(the<Exit>(actions).spare_writers);
}

TEST_F(Agent, DdpRunMayBeLostWhileItWaits) {
  run();
  core.on_snapshots(now, 1);
  message(wire::Finish{0, "done", "", ""});
  die(0);
  core.on_round_cleared(now);
  const auto actions = core.on_parent_lost(now);
  EXPECT_THAT(names(actions), ElementsAre("exit 0"));
  EXPECT_TRUE(the<Exit>(actions).spare_writers);
}

TEST_F(Agent, TheCheckpointSignalOnlyAsksForACheckpoint) {
  run();
  EXPECT_THAT(names(core.on_signal(now, SIGUSR1)), ElementsAre("checkpoint"));
  EXPECT_THAT(names(core.on_snapshots(now, 1)), IsEmpty());
  EXPECT_THAT(names(core.on_snapshots(now, 0)), IsEmpty());
  EXPECT_THAT(names(core.on_signal(now, SIGTERM)), ElementsAre("signal 15"));
}

TEST_F(Agent, WhenItsTimeIsAlmostOverANodeStopsOnceACheckpointIsWritten) {
  run();
  EXPECT_THAT(names(core.on_checkpoint_moment(now)), ElementsAre("checkpoint"));
  EXPECT_THAT(names(core.on_snapshots(now, 1)), IsEmpty());
  EXPECT_THAT(names(core.on_snapshots(now, 2)), IsEmpty());
  EXPECT_THAT(names(core.on_snapshots(now, 1)), IsEmpty());
  EXPECT_THAT(names(core.on_snapshots(now, 0)), ElementsAre("print", "signal 15"));
  die(SIGTERM);
  const auto actions = core.on_round_cleared(now);
  EXPECT_THAT(names(actions), ElementsAre("leave", "disconnect", "exit 143"));
  EXPECT_TRUE(the<Exit>(actions).result.at_time_limit);
  EXPECT_TRUE(the<Exit>(actions).result.has_checkpoint);
}

TEST_F(Agent, ACheckpointFromBeforeTheMomentIsNotTheOneItWaitsFor) {
  run();
  core.on_snapshots(now, 1);
  core.on_checkpoint_moment(now);
  EXPECT_THAT(names(core.on_snapshots(now, 0)), IsEmpty());
  EXPECT_THAT(names(core.on_snapshots(now, 1)), IsEmpty());
  EXPECT_THAT(names(core.on_snapshots(now, 0)), ElementsAre("print", "signal 15"));
}

TEST_F(Agent, WorkersThatWriteNoCheckpointAreLeftAloneAtTheMoment) {
  run();
  core.on_checkpoint_moment(now);
  message(wire::Finish{0, "done", "", ""});
  die(0);
  const auto actions = core.on_round_cleared(now);
  EXPECT_THAT(names(actions), ElementsAre("disconnect", "exit 0"));
  EXPECT_FALSE(the<Exit>(actions).result.at_time_limit);
  EXPECT_FALSE(the<Exit>(actions).result.has_checkpoint);
}

TEST_F(Agent, TheLastCheckpointMayBeWrittenAfterTheJobHasEnded) {
  run();
  core.on_checkpoint_moment(now);
  core.on_snapshots(now, 1);
  message(wire::Finish{0, "done", "", ""});
  die(0);
  core.on_round_cleared(now);
  const auto actions = core.on_snapshots(now, 0);
  EXPECT_THAT(names(actions), ElementsAre("print", "exit 0"));
  EXPECT_TRUE(the<Exit>(actions).result.at_time_limit);
}

}  // namespace
}  // namespace ddp::agent
