// What the coordinator reports about a job.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using testing::HasSubstr;
using Harness = CoordinatorHarness;

JobStatus status(const Harness& h) { return h.core.status(h.now).at(0); }

TEST(Status, OfAJobThatWaits) {
  Harness h;
  h.join(Harness::node("a", 2, 2));
  const JobStatus job = status(h);
  EXPECT_EQ(job.state, "waiting");
  EXPECT_EQ(job.round, kNoRound);
  EXPECT_EQ(job.world_size, 0);
  ASSERT_EQ(job.nodes.size(), 1u);
  EXPECT_EQ(job.nodes[0].state, "waiting");
  EXPECT_EQ(job.nodes[0].first_rank, -1);
  EXPECT_THAT(job.waiting_for, HasSubstr("1 missing"));
  EXPECT_FALSE(job.first_failure);
}

TEST(Status, ARoleStandsWhereItIsNotTheDefault) {
  Harness h;
  auto reader = Harness::node("a", 2, 2);
  reader.role = "reader";
  h.join(reader);
  h.join(Harness::node("b", 2, 2));
  const auto nodes = to_json(status(h)).at("nodes");
  EXPECT_EQ(nodes.at(0).at("role"), "reader");
  EXPECT_FALSE(nodes.at(1).contains("role"));
}

TEST(Status, OfARoundWithASpare) {
  Harness h;
  auto big = Harness::node("a", 2, 2);
  big.nproc = 3;
  const auto a = h.join(big);
  h.join(Harness::node("b", 2, 2));
  h.join(Harness::node("c", 2, 2));
  h.now += Duration(300);
  wire::Heartbeat beat;
  beat.step = 7;
  beat.loss = 0.25;
  beat.samples_per_second = 100;
  h.say(a, beat);
  h.now += Duration(200);
  const JobStatus job = status(h);
  EXPECT_EQ(job.state, "running");
  EXPECT_EQ(job.world_size, 4);
  EXPECT_EQ(job.best_step, 7);
  EXPECT_EQ(job.waiting_for, "");
  ASSERT_EQ(job.nodes.size(), 3u);
  EXPECT_EQ(job.nodes[0].state, "in_round");
  EXPECT_EQ(job.nodes[0].first_rank, 0);
  EXPECT_EQ(job.nodes[0].loss, 0.25);
  EXPECT_EQ(job.nodes[0].samples_per_second, 100);
  EXPECT_EQ(job.nodes[0].silent, Duration(200));
  EXPECT_EQ(job.nodes[1].first_rank, 3);
  EXPECT_TRUE(std::isnan(job.nodes[1].loss));
  EXPECT_EQ(job.nodes[2].state, "spare");
}

TEST(Status, SaysThatALossIsNoNumberAndForgetsItWithTheRound) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1, 1));
  EXPECT_FALSE(to_json(status(h)).at("nodes").at(0).contains("loss_is"));
  h.say(a, wire::Heartbeat{.step = 7, .loss_is = "NaN"});
  const auto node = to_json(status(h)).at("nodes").at(0);
  EXPECT_EQ(node.at("loss_is"), "NaN");
  EXPECT_FALSE(node.contains("loss"));
  h.fail(a, 0, 9);
  h.say(a, wire::Stopped{0, {}});
  EXPECT_FALSE(to_json(status(h)).at("nodes").at(0).contains("loss_is"));
}

TEST(Status, SpeedIsMeasuredOverASecondAndForgottenWithTheRound) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1, 1));
  const auto beat = [&](std::int64_t step, int after_ms) {
    h.now += Duration(after_ms);
    h.say(a, wire::Heartbeat{step});
    return status(h).nodes.at(0).steps_per_second;
  };
  EXPECT_TRUE(std::isnan(beat(10, 100)));
  EXPECT_TRUE(std::isnan(beat(12, 500)));
  EXPECT_EQ(beat(20, 500), 10);
  EXPECT_EQ(beat(21, 500), 10);
  EXPECT_EQ(beat(22, 1'500), 1);
  h.fail(a, 0, 9);
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(status(h).round, 1);
  EXPECT_TRUE(std::isnan(status(h).nodes.at(0).steps_per_second));
}

TEST(Status, TheTimeLeftIsThatOfTheStepsLeftAtThisSpeed) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 1, 1));
  const auto beat = [&](std::int64_t step, std::int64_t total_steps) {
    h.now += Duration(1'000);
    wire::Heartbeat message;
    message.step = step;
    message.total_steps = total_steps;
    h.say(a, message);
    return status(h).nodes.at(0);
  };
  EXPECT_TRUE(std::isnan(beat(10, 830).eta_seconds)) << "no speed yet";
  EXPECT_EQ(beat(30, 830).eta_seconds, 40);
  EXPECT_EQ(beat(50, 830).total_steps, 830);
  EXPECT_EQ(beat(840, 830).eta_seconds, 0) << "more than it said";
  EXPECT_TRUE(std::isnan(beat(840, 1000).eta_seconds)) << "stands still";
  EXPECT_TRUE(std::isnan(beat(860, 0).eta_seconds)) << "no number";
  beat(880, 1000);
  h.fail(a, 0, 9);
  h.say(a, wire::Stopped{0, {}});
  EXPECT_EQ(status(h).nodes.at(0).total_steps, 0) << "of the round before";
}

TEST(Status, TheRootCauseStaysKnownInLaterRounds) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 1));
  const auto b = h.join(Harness::node("b", 2, 2, 1));
  h.fail(b, 0, 0, kExitCollectiveFailed, true);
  h.fail(a, 0, 9);
  const JobStatus stopping = status(h);
  EXPECT_EQ(stopping.state, "stopping");
  EXPECT_EQ(stopping.nodes.at(0).state, "stopping");
  EXPECT_THAT(stopping.waiting_for, HasSubstr("2 nodes to stop"));
  h.say(a, wire::Stopped{0, {}});
  h.say(b, wire::Stopped{0, {}});
  const JobStatus job = status(h);
  EXPECT_EQ(job.state, "running");
  EXPECT_EQ(job.restarts, 1);
  EXPECT_EQ(job.failures, 2u);
  ASSERT_TRUE(job.first_failure);
  EXPECT_EQ(job.first_failure->round, 0);
  EXPECT_EQ(job.first_failure->signal, 9);
  EXPECT_EQ(job.first_failure->host, "a");
}

TEST(Status, OfLostNodesAndOfTheEnd) {
  Harness h;
  const auto a = h.join(Harness::node("a", 2, 2, 1));
  const auto b = h.join(Harness::node("b", 2, 2, 1));
  h.disconnect(b);
  h.say(a, wire::Stopped{0, {}});
  const JobStatus waiting = status(h);
  EXPECT_EQ(waiting.state, "waiting");
  ASSERT_EQ(waiting.nodes.size(), 2u);
  EXPECT_EQ(waiting.nodes[1].host, "b");
  EXPECT_EQ(waiting.nodes[1].state, "lost");
  EXPECT_FALSE(waiting.nodes[1].connected());
  EXPECT_THAT(waiting.waiting_for, HasSubstr("lost: b"));
  h.take(h.core.end_job(h.now, "job", 7, "enough"));
  const JobStatus over = status(h);
  EXPECT_EQ(over.state, "finished");
  EXPECT_EQ(over.exit_code, 7);
  EXPECT_EQ(over.summary, "enough");
}

// Nodes go when they have been told of the end; they are not lost then.
TEST(Status, OfAJobThatIsOver) {
  Harness h;
  const auto a = h.join(Harness::node("a", 1, 2, 1));
  const auto b = h.join(Harness::node("b", 1, 2, 1));
  h.disconnect(b);
  h.say(a, wire::Stopped{0, {}});
  h.pass(Duration{1'000});
  const auto c = h.join(Harness::node("c", 1, 2, 1));
  h.say(a, wire::NodeCommitted{1, 5});
  h.say(a, wire::Stopped{1, {}});
  h.say(a, wire::Succeeded{2});
  h.say(c, wire::Succeeded{2});
  h.disconnect(a);
  h.disconnect(c);
  const JobStatus over = status(h);
  EXPECT_EQ(over.state, "finished");
  ASSERT_EQ(over.nodes.size(), 2u);
  for (const NodeStatus& node : over.nodes) EXPECT_EQ(node.state, "finished") << node.host;
}

}  // namespace
}  // namespace ddp::rendezvous
