#include "worker/train/learning_rate.h"

#include <gtest/gtest.h>

namespace ddp::train {
namespace {

TEST(LearningRate, IsConstantByDefault) {
  for (const std::int64_t epoch : {0, 19, 20, 1000}) {
    EXPECT_EQ(learning_rate({}, 0.3, epoch, 0.5), 0.3);
  }
}

TEST(LearningRate, IsDividedEverySoManyEpochs) {
  Options options;
  options.lr_schedule = LrSchedule::kStep;
  options.lr_decay_epochs = 3;
  options.lr_decay_factor = 2;
  EXPECT_EQ(learning_rate(options, 8, 0, 0.001), 8);
  EXPECT_EQ(learning_rate(options, 8, 2, 1), 8);
  EXPECT_EQ(learning_rate(options, 8, 3, 0.001), 4);
  EXPECT_EQ(learning_rate(options, 8, 5, 1), 4);
  EXPECT_EQ(learning_rate(options, 8, 6, 0.5), 2);
  EXPECT_EQ(learning_rate(options, 8, 1'000'000'000, 0.5), 0);
}

// torch_xla's WarmupAndExponentialDecayScheduler with ten steps an epoch: step s, counted from 0,
// has rate base * (s + 1) / (warm-up epochs * 10) until that is base, and the epoch that the
// warm-up ends in is finished with base.
TEST(LearningRate, RisesFromZeroDuringTheWarmUp) {
  Options options;
  options.lr_schedule = LrSchedule::kWarmupExponential;
  options.lr_warmup_epochs = 1.5;
  options.lr_decay_epochs = 2;
  options.lr_decay_factor = 5;
  for (int step = 0; step < 60; ++step) {
    const int epoch = step / 10;
    const double done = (step % 10 + 1) / 10.0;
    double expected = epoch < 2 ? 0.5 : 0.5 / (epoch / 2 == 1 ? 5 : 25);
    if (step < 15) expected = 0.5 * (step + 1) / 15.0;
    EXPECT_DOUBLE_EQ(learning_rate(options, 0.5, epoch, done), expected) << step;
  }
  options.lr_warmup_epochs = 0;
  EXPECT_EQ(learning_rate(options, 0.5, 0, 0.1), 0.5);
}

}  // namespace
}  // namespace ddp::train
