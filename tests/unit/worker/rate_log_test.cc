#include "worker/train/rate_log.h"

#include <ctime>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.h"

namespace ddp::train {
namespace {

class RateLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<RateLog> open(bool append, std::int64_t every) {
    auto log = RateLog::open(path_, append, every);
    EXPECT_TRUE(log);
    return *std::move(log);
  }
  std::vector<nlohmann::json> lines() const {
    std::ifstream file(path_);
    std::vector<nlohmann::json> result;
    for (std::string line; std::getline(file, line);) {
      result.push_back(nlohmann::json::parse(line));
    }
    return result;
  }
  static StepRecord at(std::int64_t step) {
    return {.epoch = 1,
            .step = step,
            .loss = 0.5 + static_cast<double>(step),
            .learning_rate = 0.02,
            .samples = 256,
            .seconds = 0.25};
  }

  test::TempDir temporary_;
  const std::string path_ = temporary_.path() / "rates.jsonl";
};

TEST_F(RateLogTest, ALineIsAboutTheStepsSinceTheOneBefore) {
  const auto log = open(false, 3);
  for (std::int64_t step = 1; step <= 8; ++step) ASSERT_TRUE(log->step(at(step)));
  const auto written = lines();
  ASSERT_EQ(written.size(), 2U);  // The last two steps are no whole interval.
  EXPECT_EQ(written[0]["step"], 3);
  const nlohmann::json& second = written[1];
  EXPECT_EQ(second["epoch"], 2);
  EXPECT_EQ(second["step"], 6);
  EXPECT_EQ(second["steps"], 3);
  EXPECT_EQ(second["loss"], 6.5);
  EXPECT_EQ(second["learning_rate"], 0.02);
  EXPECT_EQ(second["samples"], 768);
  EXPECT_EQ(second["seconds"], 0.75);
  EXPECT_EQ(second["samples_per_second"], 1024);
}

TEST_F(RateLogTest, CpuSecondsAreThisProcessSinceTheLineBefore) {
  const auto log = open(false, 1);
  ASSERT_TRUE(log->step(at(1)));
  // Works for as long as the clock of the processor says.
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < CLOCKS_PER_SEC / 20) {
  }
  ASSERT_TRUE(log->step(at(2)));
  ASSERT_TRUE(log->step(at(3)));
  const auto written = lines();
  ASSERT_EQ(written.size(), 3U);
  EXPECT_GE(written[1]["cpu_seconds"].get<double>(), 0.04);
  EXPECT_LT(written[2]["cpu_seconds"].get<double>(), 0.04);
}

TEST_F(RateLogTest, AResumedTrainingAppendsAndANewOneBeginsAnew) {
  ASSERT_TRUE(open(false, 1)->step(at(1)));
  ASSERT_TRUE(open(true, 1)->step(at(2)));
  EXPECT_EQ(lines().size(), 2U);
  ASSERT_TRUE(open(false, 1)->step(at(1)));
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(RateLogTest, WhatIsNoNumberIsNull) {
  const auto log = open(false, 1);
  StepRecord record = at(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  ASSERT_TRUE(log->step(record));
  EXPECT_TRUE(lines().at(0)["loss"].is_null());
}

TEST_F(RateLogTest, AFileThatCannotBeOpenedIsNamed) {
  const auto log = RateLog::open(temporary_.path() / "none" / "rates", false, 1);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, Errc::kIo);
  EXPECT_THAT(log.error().message, ::testing::HasSubstr("none/rates: cannot open"));
}

TEST_F(RateLogTest, AFullDiskIsSaidOnce) {
  const auto log = RateLog::open("/dev/full", true, 1);
  ASSERT_TRUE(log);
  const auto written = (*log)->step(at(1));
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message, ::testing::HasSubstr("/dev/full: cannot write: No space"));
  EXPECT_TRUE((*log)->step(at(2)));
}

}  // namespace
}  // namespace ddp::train
