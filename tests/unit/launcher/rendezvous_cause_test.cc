// Which failure a job names as its cause: the first one, even if its report arrives later.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.h"
#include "common/wire/error_file.h"
#include "tests/unit/launcher/rendezvous_harness.h"

namespace ddp::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Nodes "a" and "b" with a worker each; b's raised 400 ms before a's died of that.
struct CulpritOnB : CoordinatorHarness {
  explicit CulpritOnB(int max_restarts = 0) {
    a = join(node("a", 2, 2, max_restarts));
    b = join(node("b", 2, 2, max_restarts));
  }
  static wire::Failure culprit() {
    wire::Failure failure;
    failure.rank = 1;
    failure.exit_code = 1;
    failure.message = "ValueError: bad batch";
    failure.time_ms = 1'700'000'000'123;
    failure.age_ms = 500;
    failure.own_time = true;
    failure.was_ending = true;
    return failure;
  }
  // The round is stopped at once because of a's worker; b tells of its own when it has stopped.
  void fail_and_stop() {
    fail(a, 0, 0, 7);
    EXPECT_EQ(last<wire::Stop>(b).reason, "rank 0 on a failed: exit code 7");
    now += Duration{100};
    say(a, wire::Stopped{0, {}});
    say(b, wire::Stopped{0, {culprit()}});
  }
  ConnectionId a = 0;
  ConnectionId b = 0;
};

TEST(Cause, IsTheWorkerThatFailedFirstThoughItIsHeardOfLast) {
  CulpritOnB h;
  h.fail_and_stop();
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 1) << "of the culprit, not of the first that was heard of";
  EXPECT_EQ(h.finished[0].summary, "rank 1 on b failed: exit code 1: ValueError: bad batch");
  EXPECT_THAT(h.finished[0].report, HasSubstr("  [1]: rank 0 on a failed: exit code 7\n"));
  EXPECT_THAT(h.finished[0].report, HasSubstr("rank      : 1 (local_rank: -1)\n"));
  const wire::ErrorFile error = wire::decode_error_file(h.finished[0].error);
  EXPECT_EQ(error.message, "ValueError: bad batch");
  EXPECT_EQ(error.time_ms, 1'700'000'000'000);
}

TEST(Cause, IsWhyTheNextRoundBegins) {
  CulpritOnB h(1);
  h.fail_and_stop();
  EXPECT_THAT(h.last<wire::RoundStart>(h.a).reason,
              StartsWith("rank 1 on b failed: exit code 1: ValueError: bad batch; restart 1 of 1"));
}

TEST(Cause, IsWhatTheStatusShows) {
  CulpritOnB h(1);
  h.fail_and_stop();
  const auto status = h.core.status(h.now);
  ASSERT_EQ(status.size(), 1u);
  ASSERT_TRUE(status[0].first_failure);
  EXPECT_EQ(status[0].first_failure->rank, 1);
}

TEST(Cause, IsNotWhatFailedOfTheFirst) {
  CulpritOnB h;
  h.fail(h.a, 0, 0, 7);
  h.now += Duration{300};
  wire::Failure later = CulpritOnB::culprit();
  later.age_ms = 299;
  h.say(h.a, wire::Stopped{0, {}});
  h.say(h.b, wire::Stopped{0, {later}});
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 7);
  EXPECT_THAT(h.finished[0].report,
              HasSubstr("  [1]: rank 1 on b failed: exit code 1: ValueError"));
}

// The machine of b is busy: its messages wait. Its clock shows another time than the coordinator's.
TEST(Cause, IsFoundThoughAMessageWasUnderWayForLong) {
  CulpritOnB h;
  constexpr std::int64_t kClockOfB = 7'000'000;
  h.say(h.b, wire::Heartbeat{.sent_ms = kClockOfB});
  h.now += Duration{100};
  h.fail(h.a, 0, 0, 7);
  h.now += Duration{900};
  h.say(h.a, wire::Stopped{0, {}});
  wire::Failure culprit = CulpritOnB::culprit();
  culprit.age_ms = 50;
  wire::Stopped stopped{0, {culprit}};
  stopped.sent_ms = kClockOfB + 140;  // So it failed 10 ms before a's worker was seen to end.
  h.say(h.b, stopped);
  ASSERT_EQ(h.finished.size(), 1u);
  EXPECT_EQ(h.finished[0].exit_code, 1);
}

}  // namespace
}  // namespace ddp::rendezvous
