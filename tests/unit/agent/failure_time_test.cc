#include "agent/process/failure_time.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace ddp::agent {
namespace {

TEST(FailureTime, TheFileTellsWhichMillisecondsOfItsSecond) {
  EXPECT_EQ(failure_time({.ended_ms = 101'900, .stamp_ms = 100'000, .written_ms = 100'250}),
            100'250);
  // Written just after the second, or stamped by a tick just before it.
  EXPECT_EQ(failure_time({.ended_ms = 101'900, .stamp_ms = 100'000, .written_ms = 101'003}),
            100'999);
  EXPECT_EQ(failure_time({.ended_ms = 101'900, .stamp_ms = 100'000, .written_ms = 99'997}),
            100'000);
}

// Torch's launcher copies the file of its worker, and a file server has a clock of its own.
TEST(FailureTime, AFileWrittenElsewhenIsOfTheEndOfItsSecond) {
  EXPECT_EQ(failure_time({.ended_ms = 160'000, .stamp_ms = 100'000, .written_ms = 159'000}),
            100'999);
  EXPECT_EQ(failure_time({.ended_ms = 160'000, .stamp_ms = 100'000, .written_ms = 7'000}), 100'999);
  EXPECT_EQ(failure_time({.ended_ms = 100'400, .stamp_ms = 100'000, .written_ms = 0}), 100'400)
      << "not after the end";
}

TEST(FailureTime, WithoutATimeItIsWhenTheFileWasWritten) {
  EXPECT_EQ(failure_time({.ended_ms = 101'900, .stamp_ms = 0, .written_ms = 100'250}), 100'250);
  EXPECT_EQ(failure_time({.ended_ms = 101'900, .stamp_ms = 0, .written_ms = 300'000}), 101'900);
  EXPECT_EQ(failure_time({.ended_ms = 101'900, .stamp_ms = 0, .written_ms = 0}), 101'900);
}

TEST(FailureTime, FilesAndEndsAreTimedByOneClock) {
  const test::TempDir dir;
  std::int64_t last = file_clock_ms();
  for (int round = 0; round < 1'000; ++round) {
    // One file again and again: its time was read before, so Linux 6.13 gives it a finer one.
    const std::int64_t written = written_ms(dir.write("file", "x").c_str());
    ASSERT_GE(written, last);
    last = file_clock_ms();
    ASSERT_GE(last, written);
  }
  EXPECT_EQ(written_ms((dir.path() / "missing").c_str()), 0);
}

}  // namespace
}  // namespace ddp::agent
