#include "worker/data/progress.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp {
namespace {

// A stream into memory.
class Memory {
 public:
  Memory() : file_(open_memstream(&text_, &size_)) {}
  ~Memory() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

Progress at(std::int64_t step, std::int64_t total = 100) {
  return {.epoch = 1,
          .epochs = 18,
          .step = step,
          .total_steps = total,
          .loss = 0.123456,
          .samples_per_second = 23456.7,
          .eta_seconds = 41};
}

TEST(Progress, ALineHasEpochStepLossRateAndTimeLeft) {
  EXPECT_EQ(format_progress(at(20)),
            "epoch 2/18  step 20/100  loss 0.1235  23457 samples/s  ETA 0:41");
  Progress long_one = at(20);
  long_one.eta_seconds = 3725.2;
  EXPECT_THAT(format_progress(long_one), ::testing::EndsWith("ETA 1:02:06"));
  long_one.eta_seconds = std::numeric_limits<double>::infinity();
  EXPECT_THAT(format_progress(long_one), ::testing::EndsWith("ETA ?"));
}

TEST(Progress, WithoutATerminalEveryNthStepAndTheLastAreLines) {
  Memory out;
  ProgressPrinter printer(out.file(), false, 20);
  for (std::int64_t step = 1; step <= 50; ++step) printer.step(at(step, 50), TimePoint{});
  EXPECT_EQ(out.text(), format_progress(at(20, 50)) + "\n" + format_progress(at(40, 50)) + "\n" +
                            format_progress(at(50, 50)) + "\n");
}

TEST(Progress, OnATerminalOneLineIsDrawnAgainAtMostTenTimesASecond) {
  Memory out;
  ProgressPrinter printer(out.file(), true, 20);
  TimePoint now{};
  for (std::int64_t step = 1; step <= 9; ++step, now += std::chrono::milliseconds(40)) {
    printer.step(at(step), now);
  }
  // Steps 1, 4 and 7 are 120 ms apart.
  EXPECT_EQ(out.text(), "\r" + format_progress(at(1)) + "\x1b[K\r" + format_progress(at(4)) +
                            "\x1b[K\r" + format_progress(at(7)) + "\x1b[K");
}

TEST(Progress, OnATerminalTheLastStepIsShownAndLinesStandAlone) {
  Memory out;
  ProgressPrinter printer(out.file(), true, 20);
  printer.step(at(99), TimePoint{});
  printer.step(at(100), TimePoint{});
  printer.line("epoch 2: accuracy 98 %");
  printer.line("second");
  EXPECT_EQ(out.text(), "\r" + format_progress(at(99)) + "\x1b[K\r" + format_progress(at(100)) +
                            "\x1b[K\r\x1b[Kepoch 2: accuracy 98 %\nsecond\n");
}

}  // namespace
}  // namespace ddp
