#include "launcher/rendezvous/failure_order.h"

#include <csignal>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

struct Order {
  // Of a worker whose end was seen `age` before the message came.
  static wire::Failure seen(const std::string& node, int rank, std::int64_t time_ms,
                            std::int64_t age_ms = 0) {
    wire::Failure failure;
    failure.node_id = node;
    failure.group_rank = node == "a" ? 0 : 1;
    failure.rank = rank;
    failure.exit_code = 1;
    failure.time_ms = time_ms;
    failure.age_ms = age_ms;
    return failure;
  }
  // Of one that had said itself when it failed.
  static wire::Failure said(const std::string& node, int rank, std::int64_t time_ms,
                            std::int64_t age_ms) {
    wire::Failure failure = seen(node, rank, time_ms, age_ms);
    failure.own_time = true;
    return failure;
  }
  static wire::Failure killed(wire::Failure failure, int signal) {
    failure.exit_code = 0;
    failure.signal = signal;
    return failure;
  }
  Order& add(wire::Failure failure, std::int64_t heard_ms) {
    order.add(std::move(failure), TimePoint(Duration(heard_ms)));
    return *this;
  }
  std::vector<int> ranks() const {
    std::vector<int> ranks;
    for (const wire::Failure& failure : order.all()) ranks.push_back(failure.rank);
    return ranks;
  }
  FailureOrder order;
};

TEST(FailureOrder, WithoutTimesItIsTheOrderOfArrival) {
  Order h;
  h.add(Order::seen("a", 1, 0), 100)
      .add(Order::seen("b", 0, 0), 100)
      .add(Order::seen("a", 2, 0), 150);
  EXPECT_THAT(h.ranks(), ElementsAre(1, 0, 2));
}

TEST(FailureOrder, OnOneNodeTheTimesAreCompared) {
  Order h;
  // Heard 300 ms later, and 200 ms older.
  h.add(Order::seen("a", 0, 5'000), 100).add(Order::said("a", 1, 4'800, 500), 400);
  EXPECT_THAT(h.ranks(), ElementsAre(1, 0));
  // Messages that were under way for long change nothing.
  h.add(Order::said("a", 2, 4'900, 10), 9'000);
  EXPECT_THAT(h.ranks(), ElementsAre(1, 2, 0));
  h.add(Order::said("a", 3, 4'900, 5'000), 9'000);
  EXPECT_THAT(h.ranks(), ElementsAre(1, 2, 3, 0)) << "at the same time: order of arrival";
}

// b's clock is an hour ahead, then an hour behind.
TEST(FailureOrder, BetweenNodesTheAgesAreCompared) {
  for (const std::int64_t hour : {3'600'000, -3'600'000}) {
    Order h;
    h.add(Order::seen("a", 0, 10'000'000), 1'000);
    h.add(Order::said("b", 1, 10'000'000 + hour, 500), 1'300);
    h.add(Order::said("b", 2, 10'000'400 + hour, 100), 1'300);
    EXPECT_THAT(h.ranks(), ElementsAre(1, 0, 2));
  }
}

// Its connections were closed, and another one failed of that, before anybody saw that it was gone.
TEST(FailureOrder, WhatWasKilledIsNotAConsequenceOfWhatFailedJustBefore) {
  Order h;
  h.add(Order::killed(Order::seen("a", 0, 5'000), SIGKILL), 100);
  h.add(Order::said("a", 1, 4'990, 200), 300);
  EXPECT_THAT(h.ranks(), ElementsAre(0, 1));
  h.add(Order::said("b", 2, 0, 190), 300);
  EXPECT_THAT(h.ranks(), ElementsAre(0, 1, 2)) << "110, so 10 after it";
  h.add(Order::said("a", 3, 4'700, 500), 300);
  EXPECT_THAT(h.ranks(), ElementsAre(3, 0, 1, 2)) << "long before";
}

TEST(FailureOrder, NeitherIsANodeThatWasLost) {
  Order h;
  wire::Failure lost = Order::seen("b", -1, 0);
  lost.kind = "agent";
  h.add(lost, 1'000).add(Order::said("a", 0, 5'000, 150), 1'100);
  EXPECT_THAT(h.ranks(), ElementsAre(-1, 0));
}

// NCCL's watchdog aborts its process when the peer's connection closes.
TEST(FailureOrder, AnAbortMayFollowFromWhatFailedJustBefore) {
  Order h;
  h.add(Order::killed(Order::seen("a", 0, 5'000), SIGABRT), 100);
  h.add(Order::said("a", 1, 4'990, 200), 300);
  EXPECT_THAT(h.ranks(), ElementsAre(1, 0));
}

TEST(FailureOrder, ASignalAtItsExitIsNotWhenItFailed) {
  Order h;
  h.add(Order::killed(Order::said("a", 0, 5'000, 0), SIGSEGV), 100);
  h.add(Order::said("a", 1, 4'990, 200), 300);
  EXPECT_THAT(h.ranks(), ElementsAre(1, 0));
}

TEST(FailureOrder, AgesThatCannotBeAreBounded) {
  Order h;
  h.add(Order::said("a", 0, 0, -50), 100);
  h.add(Order::said("b", 1, 0, std::numeric_limits<std::int64_t>::max()), 200);
  h.add(Order::said("a", 2, 0, std::numeric_limits<std::int64_t>::min()), 300);
  EXPECT_THAT(h.ranks(), ElementsAre(1, 0, 2));
}

TEST(FailureOrder, KeepsNoMoreThanItMustAndDropsConsequencesFirst) {
  Order h;
  for (int rank = 0; rank < 5'000; ++rank) {
    wire::Failure failure = Order::seen("a", rank, 0);
    failure.secondary = rank > 0;
    h.add(failure, rank);
  }
  EXPECT_THAT(h.ranks(), SizeIs(4'096));
  EXPECT_EQ(h.ranks().back(), 4'095);
  h.add(Order::seen("b", 9'999, 0), 6'000);
  EXPECT_THAT(h.ranks(), SizeIs(4'096));
  EXPECT_EQ(h.ranks().back(), 9'999) << "a cause that comes late takes the place of a consequence";
}

TEST(FailureOrder, WhatANodeTellsAnewIsForgotten) {
  Order h;
  h.add(Order::seen("a", 0, 0), 100)
      .add(Order::seen("b", 1, 0), 200)
      .add(Order::seen("a", 2, 0), 300);
  h.order.forget(0);
  EXPECT_THAT(h.ranks(), ElementsAre(1));
  h.add(Order::said("a", 0, 0, 250), 400);
  EXPECT_THAT(h.ranks(), ElementsAre(0, 1)) << "the times of those that stayed are known";
}

}  // namespace
}  // namespace ddp::rendezvous
