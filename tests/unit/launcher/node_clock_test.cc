#include "launcher/rendezvous/node_clock.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

TimePoint at(std::int64_t ms) { return TimePoint(Duration{ms}); }

TEST(NodeClock, WithoutATimeItIsTheArrival) {
  NodeClock clock;
  EXPECT_EQ(clock.sent_at(0, at(700)), at(700));
  EXPECT_EQ(clock.sent_at(50, at(1'050)), at(1'050)) << "nothing is known yet";
}

TEST(NodeClock, ADelayBeyondTheShortestIsTakenOff) {
  NodeClock clock;
  clock.sent_at(5'000, at(1'002));
  EXPECT_EQ(clock.sent_at(6'000, at(2'300)), at(2'002)) << "it was under way for 300 ms";
  EXPECT_EQ(clock.sent_at(7'000, at(3'001)), at(3'001));
  EXPECT_EQ(clock.sent_at(8'000, at(4'050)), at(4'001)) << "1 ms is the shortest delay now";
}

// Its clock runs slow by a millisecond a message.
TEST(NodeClock, OldMessagesAreForgottenBecauseClocksDrift) {
  NodeClock clock;
  for (std::int64_t i = 0; i < 1'000; ++i) {
    const TimePoint heard = at(10'000 + 1'000 * i);
    const Duration error =
        std::chrono::duration_cast<Duration>(heard - clock.sent_at(5'000 + 999 * i, heard));
    ASSERT_LE(error.count(), 15) << "message " << i;
  }
}

TEST(NodeClock, TimesThatCannotBeChangeNothing) {
  NodeClock clock;
  clock.sent_at(5'000, at(1'000));
  for (const std::int64_t impossible : {std::numeric_limits<std::int64_t>::min(), std::int64_t{-1},
                                        std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(clock.sent_at(impossible, at(1'500)), at(1'500));
  }
  EXPECT_EQ(clock.sent_at(6'000, at(2'200)), at(2'000));
}

}  // namespace
}  // namespace ddp::rendezvous
