// What nodes that meet again know about a coordinator that was lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using Harness = CoordinatorHarness;

wire::Join from_before(const std::string& name, Round last_round, int restarts, int max_restarts) {
  wire::Join join = Harness::node(name, 2, 2, max_restarts);
  join.last_round = last_round;
  join.restarts = restarts;
  return join;
}

TEST(CoordinatorLoss, NumbersGoOnAndTheLossIsChargedOnce) {
  Harness h;
  h.join(from_before("a", 4, 2, 5));
  const auto b = h.join(from_before("b", 4, 2, 5));
  const auto start = h.last<wire::RoundStart>(b);
  EXPECT_EQ(start.round, 5);
  EXPECT_EQ(start.restarts, 3);
  EXPECT_EQ(start.reason, "the rendezvous was lost and came back; restart 3 of 5");
}

TEST(CoordinatorLoss, TheHighestNumbersCount) {
  Harness h;
  h.join(from_before("a", 4, 2, 5));
  const auto b = h.join(from_before("b", 5, 3, 5));
  EXPECT_EQ(h.last<wire::RoundStart>(b).round, 6);
  EXPECT_EQ(h.last<wire::RoundStart>(b).restarts, 4);
}

TEST(CoordinatorLoss, ANodeThatKnowsNothingChangesNothing) {
  Harness h;
  h.join(Harness::node("new", 2, 2, 1));
  const auto b = h.join(from_before("b", 0, 0, 1));
  EXPECT_EQ(h.last<wire::RoundStart>(b).round, 1);
  EXPECT_EQ(h.last<wire::RoundStart>(b).restarts, 1);
}

TEST(CoordinatorLoss, ASuccessorOfAnAgentIsNoSignOfALostCoordinator) {
  Harness h;
  h.join(Harness::node("a", 1, 1, 2));
  wire::Join successor = Harness::node("a", 1, 1, 2);
  successor.last_round = 0;
  const auto a = h.join(successor);
  EXPECT_EQ(h.last<wire::RoundStart>(a).restarts, 1) << "the agent's loss and nothing else";
}

TEST(CoordinatorLoss, WithoutBudgetTheJobEndsForAllItsNodes) {
  Harness h;
  const auto a = h.join(from_before("a", 4, 2, 2));
  EXPECT_TRUE(h.finished.empty()) << "somebody may come with the round still running";
  const auto b = h.join(from_before("b", 4, 2, 2));
  EXPECT_EQ(h.finished.at(0).exit_code, kExitCoordinatorLost);
  EXPECT_EQ(h.last<wire::Finish>(a).exit_code, kExitCoordinatorLost);
  EXPECT_EQ(h.last<wire::Finish>(b).exit_code, kExitCoordinatorLost);
}

}  // namespace
}  // namespace ddp::rendezvous
