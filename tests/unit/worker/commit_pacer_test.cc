#include "worker/runtime/commit_pacer.h"

#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

// Trainings that consist only of times.
namespace ddp::runtime {
namespace {

// A rank 0 that is alone: what it proposes is agreed.
class Training {
 public:
  explicit Training(const CommitPace& pace = {}) : pacer_(pace) {}

  // Makes so many steps. The numbers of those that were committed.
  std::vector<int> run(int steps, double step_seconds, double commit_seconds) {
    std::vector<int> committed;
    for (int i = 0; i < steps; ++i) {
      now_ += step_seconds;
      ++step_;
      if (!pacer_.step()) continue;
      commit(commit_seconds);
      committed.push_back(step_);
    }
    return committed;
  }
  void commit(double seconds) {
    pacer_.commit_begins(now_);
    pacer_.agree(pacer_.proposal());
    now_ += seconds;
    committing_ += seconds;
    pacer_.commit_ended(now_, new_buffers_ > 0);
    if (new_buffers_ > 0) --new_buffers_;
  }
  void begin_round() { pacer_.begin(); }
  void wait(double seconds) { now_ += seconds; }

  double share() const { return committing_ / now_; }
  void forget_share() { committing_ = now_ = 0; }

 private:
  CommitPacer pacer_;
  double now_ = 0;
  double committing_ = 0;
  int step_ = 0;
  int new_buffers_ = 2;
};

TEST(CommitPacer, CommitsTakeAHundredthOfTheTimeAtMost) {
  for (const double commit : {0.0011, 0.019, 0.2, 3.0}) {
    Training training;
    (void)training.run(200'000, 0.11, commit);
    Training later = training;
    later.forget_share();
    const auto committed = later.run(200'000, 0.11, commit);
    EXPECT_LE(later.share(), 0.0102) << commit;
    EXPECT_GT(later.share(), 0.009) << commit << " takes less than it may";
    EXPECT_FALSE(committed.empty());
  }
}

TEST(CommitPacer, WhatIsCheapIsCommittedAfterEveryStep) {
  Training training;
  EXPECT_EQ(training.run(100, 0.1, 0.001).size(), 100U);
}

TEST(CommitPacer, TheFirstStepsAreCommittedAndThenItGrows) {
  Training training;
  // 99 * 19 / 110 = 17.1
  EXPECT_EQ(training.run(80, 0.11, 0.019), (std::vector<int>{1, 2, 3, 4, 8, 24, 42, 60, 78}));
}

TEST(CommitPacer, ARoundBeginsWithACommitAndKnowsTheTimesOfTheOneBefore) {
  Training training;
  (void)training.run(100, 0.11, 0.019);
  training.begin_round();
  EXPECT_EQ(training.run(30, 0.11, 0.019), (std::vector<int>{101, 105, 121}));
}

TEST(CommitPacer, TheTimeBetweenRoundsIsNotTakenForASlowStep) {
  Training training;
  for (std::size_t i = 0; i < CommitPacer::kRemembered; ++i) {
    (void)training.run(1, 0.11, 0.019);
    training.wait(50);
    training.begin_round();
  }
  EXPECT_EQ(training.run(40, 0.11, 0.019), (std::vector<int>{10, 11, 15, 31, 49}));
}

TEST(CommitPacer, OneSlowCommitOrStepChangesNothing) {
  Training training;
  (void)training.run(200, 0.11, 0.019);
  training.commit(5);
  (void)training.run(1, 60, 0.019);
  const auto committed = training.run(54, 0.11, 0.019);
  ASSERT_EQ(committed.size(), 3U);
  EXPECT_EQ(committed[2] - committed[1], 18);
}

TEST(CommitPacer, WhatChangesForGoodIsFollowed) {
  Training training;
  (void)training.run(2000, 0.11, 0.019);
  (void)training.run(2000, 1.1, 0.019);
  training.forget_share();
  EXPECT_EQ(training.run(20, 1.1, 0.019).size(), 10U);  // Every second step.
}

TEST(CommitPacer, AFixedNumberOfStepsIsKept) {
  Training training(CommitPace{.every = 7});
  EXPECT_EQ(training.run(30, 0.1, 5), (std::vector<int>{7, 14, 21, 28}));
  training.begin_round();
  EXPECT_EQ(training.run(10, 0.1, 5), (std::vector<int>{37}));
}

// Another rank measures other times.
TEST(CommitPacer, WhatRank0ProposesCounts) {
  CommitPacer pacer;
  EXPECT_TRUE(pacer.step());
  pacer.commit_begins(1);
  pacer.agree(3);
  pacer.commit_ended(1, false);
  EXPECT_FALSE(pacer.step());
  EXPECT_FALSE(pacer.step());
  EXPECT_TRUE(pacer.step());
}

TEST(CommitPacer, APaceThatMakesNoSenseIsRefused) {
  for (const CommitPace& pace : {CommitPace{-1, 0.01}, CommitPace{0, 0}, CommitPace{0, 1}}) {
    EXPECT_THROW(CommitPacer{pace}, std::invalid_argument);
  }
}

}  // namespace
}  // namespace ddp::runtime
