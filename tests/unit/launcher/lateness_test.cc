#include "launcher/rendezvous/lateness.h"

#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

// Ranks that make steps together: each takes its own time to compute, and waits for the slowest.
class Training {
 public:
  explicit Training(std::size_t ranks, double limit = 0) : lateness(limit), told_(ranks) {
    lateness.begin_round(now, static_cast<int>(ranks));
  }

  // One step, in which the ranks compute so many milliseconds.
  void step(const std::vector<double>& computes_ms) {
    double longest = 0;
    for (std::size_t i = 0; i < told_.size(); ++i) {
      told_[i] += computes_ms[i];
      longest = std::max(longest, computes_ms[i]);
    }
    now += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::milli>(longest + 10));
    ++steps_;
    for (std::size_t i = 0; i < told_.size(); ++i) {
      const auto changes = lateness.report(now, static_cast<Rank>(i), steps_, told_[i]);
      if (!changes) continue;
      for (const auto& late : changes->began) began.push_back(late);
      for (const auto& late : changes->ended) ended.push_back(late);
    }
  }
  void steps(Duration time, const std::vector<double>& computes_ms) {
    for (const TimePoint end = now + time; now < end;) step(computes_ms);
  }
  // Other processes go on with the round: a rank's time begins anew.
  void restart(std::size_t rank) { told_[rank] = 1; }

  TimePoint now{Duration{1'000'000}};
  Lateness lateness;
  std::vector<Lateness::Late> began;
  std::vector<Lateness::Late> ended;

 private:
  std::vector<double> told_;
  std::int64_t steps_ = 0;
};

constexpr Duration kHalfAMinute{30'000};

TEST(Lateness, NamesTheRankThatComputesLonger) {
  Training training(4);
  const TimePoint start = training.now;
  training.steps(kHalfAMinute, {100, 101, 99, 212});
  ASSERT_EQ(training.began.size(), 1u);
  const Lateness::Late late = training.began.front();
  EXPECT_EQ(late.rank, 3);
  EXPECT_NEAR(late.computes_ms, 212, 0.5);
  EXPECT_NEAR(late.others_ms, 100, 0.5);
  EXPECT_EQ(late.since, start);
  EXPECT_EQ(training.lateness.late().size(), 1u);
  EXPECT_THAT(training.ended, testing::IsEmpty());
}

TEST(Lateness, EndsWhenTheRankIsAsFastAsTheOthersForAWhile) {
  Training training(3);
  training.steps(kHalfAMinute, {100, 200, 100});
  training.steps(Duration{10'000}, {100, 100, 100});
  EXPECT_EQ(training.lateness.late().size(), 1u) << "too early to say";
  training.steps(Duration{10'000}, {100, 200, 100});
  training.steps(Duration{16'000}, {100, 100, 100});
  EXPECT_EQ(training.lateness.late().size(), 1u) << "the count did not begin anew";
  training.steps(Duration{10'000}, {100, 100, 100});
  EXPECT_EQ(training.ended.size(), 1u);
  EXPECT_EQ(training.began.size(), 1u);
}

TEST(Lateness, OfTwoRanksTheSlowerOneIsLate) {
  Training training(2);
  training.steps(kHalfAMinute, {150, 100});
  ASSERT_EQ(training.began.size(), 1u);
  EXPECT_EQ(training.began.front().rank, 0);
  EXPECT_NEAR(training.began.front().ratio(), 1.5, 0.01);
}

TEST(Lateness, SeveralRanksOfASlowNodeAreLateTogether) {
  Training training(6);
  training.steps(kHalfAMinute, {100, 100, 100, 100, 180, 180});
  EXPECT_EQ(training.began.size(), 2u);
  EXPECT_TRUE(training.lateness.late().contains(4));
  EXPECT_TRUE(training.lateness.late().contains(5));
}

TEST(Lateness, OneFastRankMakesNoneOfTheOthersLate) {
  Training training(3);
  training.steps(kHalfAMinute, {50, 100, 100});
  EXPECT_THAT(training.began, testing::IsEmpty());
}

TEST(Lateness, AFewMillisecondsAreNoise) {
  Training training(3);
  training.steps(kHalfAMinute, {2, 2, 6});
  EXPECT_THAT(training.began, testing::IsEmpty());
}

// Rank 0 alone saves, validates or collects garbage while the others wait for it.
TEST(Lateness, PausesOfOneRankAreNotLateness) {
  Training training(3);
  for (int minute = 0; minute < 10; ++minute) {
    training.steps(Duration{15'000}, {100, 100, 100});
    training.step({45'000, 100, 100});
  }
  EXPECT_THAT(training.began, testing::IsEmpty());
}

TEST(Lateness, RanksThatAreSlowInTurnAreNotLate) {
  Training training(3);
  for (int i = 0; i < 60; ++i) {
    std::vector<double> times{100, 100, 100};
    times[static_cast<std::size_t>(i) % 3] = 300;
    training.steps(Duration{6'000}, times);
  }
  EXPECT_THAT(training.began, testing::IsEmpty());
}

// Times of steps on a machine with much else to do: a scheduler gives a process a share of a core
// that differs from step to step, and from second to second.
TEST(Lateness, NoiseIsNotLateness) {
  const std::uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> step(0, 1.0);
  std::lognormal_distribution<double> second(0, 0.25);
  Training training(8);
  std::vector<double> shares(8, 1.0);
  std::vector<double> times(8);
  for (int i = 0; i < 100'000; ++i) {
    if (i % 5 == 0) {
      for (double& share : shares) share = second(random);
    }
    for (std::size_t rank = 0; rank < times.size(); ++rank)
      times[rank] = 100 * shares[rank] * step(random);
    training.step(times);
  }
  EXPECT_THAT(training.began, testing::IsEmpty());
}

TEST(Lateness, IsFoundInNoise) {
  const std::uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> step(0, 0.3);
  Training training(4);
  for (int i = 0; i < 1'000; ++i) {
    training.step({100 * step(random), 100 * step(random), 220 * step(random), 100 * step(random)});
  }
  ASSERT_EQ(training.began.size(), 1u);
  EXPECT_EQ(training.began.front().rank, 2);
}

TEST(Lateness, IsNotKnownWhileARankTellsNothing) {
  Lateness lateness;
  TimePoint now{Duration{1'000'000}};
  lateness.begin_round(now, 3);
  for (int step = 0; step < 1'000; ++step) {
    now += Duration{100};
    EXPECT_FALSE(lateness.report(now, 0, step, 100.0 * step));
    EXPECT_FALSE(lateness.report(now, 1, step, 300.0 * step));
    EXPECT_FALSE(lateness.report(now, 2, step, std::numeric_limits<double>::quiet_NaN()));
    EXPECT_FALSE(lateness.report(now, 7, step, 1.0));
  }
}

TEST(Lateness, AnotherProcessBeginsAnew) {
  Training training(3);
  for (int i = 0; i < 20; ++i) {
    training.steps(Duration{3'000}, {100, 100, 100});
    training.restart(static_cast<std::size_t>(i) % 3);
  }
  EXPECT_THAT(training.began, testing::IsEmpty());
  training.steps(kHalfAMinute, {100, 100, 300});
  EXPECT_EQ(training.began.size(), 1u);
}

TEST(Lateness, AnotherRoundBeginsAnew) {
  Training training(3);
  training.steps(kHalfAMinute, {100, 100, 300});
  training.lateness.begin_round(training.now, 3);
  EXPECT_TRUE(training.lateness.late().empty());
  training.steps(Duration{15'000}, {100, 100, 300});
  EXPECT_EQ(training.began.size(), 1u);
}

TEST(Lateness, TheLimitTakesLongerAndAsksForMore) {
  Training training(3, 2.0);
  training.steps(kHalfAMinute, {100, 100, 250});
  EXPECT_TRUE(training.lateness.late().contains(2));
  EXPECT_FALSE(training.lateness.beyond_limit());
  training.steps(Duration{10'000}, {100, 100, 250});
  ASSERT_TRUE(training.lateness.beyond_limit());
  EXPECT_EQ(training.lateness.beyond_limit()->rank, 2);

  Training milder(3, 2.0);
  milder.steps(Duration{120'000}, {100, 100, 180});
  EXPECT_TRUE(milder.lateness.late().contains(2));
  EXPECT_FALSE(milder.lateness.beyond_limit());
}

}  // namespace
}  // namespace ddp::rendezvous
