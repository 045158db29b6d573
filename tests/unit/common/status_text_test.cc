#include "common/terminal/status_text.h"

#include <gtest/gtest.h>

namespace ddp::terminal {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

RoundSize round_of(int nodes, int workers) {
  return {.round = 2, .nodes = nodes, .workers = workers};
}

TEST(StatusText, CountsNodesAndWorkers) {
  StatusText status;
  EXPECT_EQ(status.text(kStart), "");
  status.begin_round(round_of(1, 1));
  EXPECT_EQ(status.text(kStart), "round 2 | 1 node | 1 worker");
  RoundSize second = round_of(2, 8);
  second.restarts = 1;
  second.max_restarts = 3;
  status.begin_round(second);
  EXPECT_EQ(status.text(kStart), "round 2 (restart 1 of 3) | 2 nodes | 8 workers");
}

TEST(StatusText, StepRateAndLoss) {
  StatusText status;
  status.begin_round(round_of(1, 2));
  status.on_progress(kStart, 0, 10, 0, 0);
  EXPECT_EQ(status.text(kStart), "round 2 | 1 node | 2 workers | step 10");
  status.on_progress(kStart + Duration(1'000), 0, 30, 0.25, 0);
  status.on_progress(kStart + Duration(1'000), 1, 29, 0.75, 0);
  EXPECT_EQ(status.text(kStart + Duration(1'000)),
            "round 2 | 1 node | 2 workers | step 30 | 20.0 steps/s | loss 0.5");
  // It stands still.
  EXPECT_EQ(status.text(kStart + Duration(4'000)),
            "round 2 | 1 node | 2 workers | step 30 | 5.00 steps/s | loss 0.5");
}

TEST(StatusText, TheTimeLeftFollowsFromTheRate) {
  StatusText status;
  status.begin_round(round_of(1, 2));
  status.on_progress(kStart, 0, 10, 0, 830);
  EXPECT_EQ(status.text(kStart), "round 2 | 1 node | 2 workers | step 10/830");
  status.on_progress(kStart + Duration(1'000), 0, 30, 0, 830);
  status.on_progress(kStart + Duration(1'000), 1, 29, 0, 0);  // Behind, and knows no number.
  EXPECT_EQ(status.text(kStart + Duration(1'000)),
            "round 2 | 1 node | 2 workers | step 30/830 | 20.0 steps/s | ETA 0:40");
  EXPECT_EQ(status.text(kStart + Duration(4'000)),
            "round 2 | 1 node | 2 workers | step 30/830 | 5.00 steps/s | ETA 2:40");
  status.on_progress(kStart + Duration(5'000), 0, 830, 0, 830);
  EXPECT_EQ(status.text(kStart + Duration(5'000)),
            "round 2 | 1 node | 2 workers | step 830/830 | 164.0 steps/s | ETA 0:00");
  status.begin_round(round_of(1, 2));
  status.on_progress(kStart + Duration(6'000), 0, 10, 0, 0);
  EXPECT_EQ(status.text(kStart + Duration(6'000)), "round 2 | 1 node | 2 workers | step 10");
}

TEST(StatusText, TheRateIsThatOfTheLastSeconds) {
  StatusText status;
  status.begin_round(round_of(1, 1));
  TimePoint now = kStart;
  for (int step = 0; step < 100; ++step) status.on_progress(now += Duration(1'000), 0, step, 0, 0);
  for (int step = 100; step < 200; ++step) status.on_progress(now += Duration(100), 0, step, 0, 0);
  EXPECT_EQ(status.text(now), "round 2 | 1 node | 1 worker | step 199 | 10.0 steps/s");
}

}  // namespace
}  // namespace ddp::terminal
