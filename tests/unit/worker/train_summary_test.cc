#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.h"
#include "worker/train/summary.h"

namespace ddp::train {
namespace {

class SummaryTest : public ::testing::Test {
 protected:
  test::TempDir temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(SummaryTest, TheFileIsOneObjectAndTheTemporaryOneIsGone) {
  Summary summary;
  summary.model = "mnist";
  summary.test_accuracy = 0.975;
  summary.steps = 828;
  summary.seed = 4000000000;
  const std::string path = folder_ / "s.json";
  ASSERT_TRUE(check_summary_path(path));
  std::ofstream(path) << "the former one";
  ASSERT_TRUE(write_summary(path, summary));
  std::ifstream file(path);
  const auto object = nlohmann::json::parse(file);
  EXPECT_EQ(object["model"], "mnist");
  EXPECT_EQ(object["test_accuracy"], 0.975);
  EXPECT_EQ(object["steps"], 828);
  EXPECT_EQ(object["seed"], 4000000000);
  for (const char* key :
       {"model", "world_size", "epochs", "steps", "train_loss", "test_accuracy", "weights_sha256",
        "samples_per_second", "restarts", "rounds", "resumed_from_step", "grad_sync", "blas"}) {
    EXPECT_TRUE(object.contains(key)) << key;
  }
  std::filesystem::directory_iterator entries(folder_);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST_F(SummaryTest, WhatIsNoNumberIsNull) {
  Summary summary;
  summary.train_loss = std::numeric_limits<double>::quiet_NaN();
  const auto object = nlohmann::json::parse(to_json(summary));
  EXPECT_TRUE(object["train_loss"].is_null());
  EXPECT_TRUE(object["test_accuracy"].is_null());
}

TEST_F(SummaryTest, APathThatCannotBeWrittenIsKnownBeforehand) {
  for (const std::string& path :
       {(folder_ / "no" / "s.json").string(), folder_.string(), std::string("/proc/version/x")}) {
    const auto checked = check_summary_path(path);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, Errc::kIo);
    EXPECT_THAT(checked.error().message, ::testing::HasSubstr(path));
    EXPECT_FALSE(write_summary(path, {}));
  }
}

}  // namespace
}  // namespace ddp::train
