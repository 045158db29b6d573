#include "worker/tensorboard/event_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errc.h"
#include "tests/support/event_points.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"
#include "worker/tensorboard/crc32c.h"
#include "worker/tensorboard/record.h"

namespace ddp::tensorboard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EventFileTest : public ::testing::Test {
 protected:
  EventFile open(std::int64_t last_step) {
    auto file = EventFile::open(folder_, last_step);
    EXPECT_TRUE(file) << file.error().message;
    return *std::move(file);
  }
  std::string text() const {
    std::ostringstream out;
    out << std::ifstream(path_, std::ios::binary).rdbuf();
    return out.str();
  }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  // "STEP TAG" of every scalar.
  std::vector<std::string> points() const { return test::EventPoints(path_).lines(); }
  Error refusal(std::int64_t last_step) const {
    const auto file = EventFile::open(folder_, last_step);
    EXPECT_FALSE(file);
    return file ? Error{} : file.error();
  }
  static void add(EventFile& file, std::int64_t step, const std::vector<std::string>& tags) {
    std::vector<Scalar> scalars;
    for (const std::string& tag : tags) scalars.push_back({tag, 0.5});
    ASSERT_TRUE(file.add(step, scalars));
  }

  test::TempDir temporary_;
  const std::string folder_ = temporary_.path() / "made" / "here";
  const std::string path_ = folder_ + "/events.out.tfevents.ddp-run";
};

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32c, IsThatOfIscsi) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
}

TEST_F(EventFileTest, AResumedTrainingLeavesEachStepOnce) {
  {
    EventFile file = open(EventFile::kKeepNone);
    for (std::int64_t step : {2, 4, 6, 8}) add(file, step, {"loss", "lr"});
  }
  EventFile file = open(5);
  add(file, 6, {"loss", "lr"});
  add(file, 8, {"loss"});
  EXPECT_THAT(points(),
              ElementsAre("2 loss", "2 lr", "4 loss", "4 lr", "6 loss", "6 lr", "8 loss"));
}

TEST_F(EventFileTest, ATrainingThatBeginsEmptiesTheFile) {
  {
    EventFile file = open(EventFile::kKeepNone);
    add(file, 2, {"loss"});
  }
  EventFile file = open(EventFile::kKeepNone);
  EXPECT_THAT(points(), ElementsAre());
  EXPECT_THAT(text(), HasSubstr("brain.Event:2"));
}

TEST_F(EventFileTest, AStepZeroIsAStep) {
  {
    EventFile file = open(EventFile::kKeepNone);
    for (std::int64_t step : {0, 1}) add(file, step, {"loss"});
  }
  EventFile file = open(0);
  add(file, 1, {"loss"});
  EXPECT_THAT(points(), ElementsAre("0 loss", "1 loss"));
}

// A full disk takes the beginning of a record. Once there is room, what follows must be readable.
TEST_F(EventFileTest, WhatAFullDiskCutsIsTakenBack) {
  EventFile file = open(EventFile::kKeepNone);
  add(file, 1, {"loss"});
  const Scalar scalar{"loss", 0.5};
  {
    const test::FileSizeLimit full(std::filesystem::file_size(path_) + 7);
    const auto written = file.add(2, {&scalar, 1});
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Errc::kIo);
  }
  add(file, 3, {"loss"});
  EXPECT_THAT(points(), ElementsAre("1 loss", "3 loss"));
}

// As with a scalar that is counted in epochs beside others that are counted in steps.
TEST_F(EventFileTest, StepsThatWereNotWrittenInOrderAreKept) {
  {
    EventFile file = open(EventFile::kKeepNone);
    for (std::int64_t step : {2, 4, 1, 6, 8, 2, 10}) add(file, step, {"loss"});
  }
  EventFile file = open(4);
  add(file, 6, {"loss"});
  EXPECT_THAT(points(), ElementsAre("2 loss", "4 loss", "1 loss", "2 loss", "6 loss"));
  EXPECT_THAT(text(), HasSubstr("brain.Event:2"));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(EventFileTest, AllCanBeKept) {
  for (std::int64_t step : {2, 4}) {
    EventFile file = open(EventFile::kKeepAll);
    add(file, step, {"loss"});
  }
  EXPECT_THAT(points(), ElementsAre("2 loss", "4 loss"));
}

TEST_F(EventFileTest, AScalarThatTheStepHasIsNotWrittenAgain) {
  {
    EventFile file = open(EventFile::kKeepNone);
    add(file, 4, {"loss", "accuracy"});
  }
  EventFile file = open(4);
  add(file, 4, {"accuracy", "checkpoint"});
  add(file, 8, {"accuracy"});
  EXPECT_THAT(points(), ElementsAre("4 loss", "4 accuracy", "4 checkpoint", "8 accuracy"));
}

// As the time that a checkpoint took, which the next process may know from the checkpoint.
TEST_F(EventFileTest, APointThatComesLateIsWrittenOnceWhoeverBringsIt) {
  {
    EventFile file = open(EventFile::kKeepNone);
    for (std::int64_t step : {4, 8}) {
      add(file, step + 2, {"loss"});
      ASSERT_TRUE(file.add_late(step, {"write", 0.5}));
      ASSERT_TRUE(file.add_late(step, {"write", 0.5}));
    }
  }
  const std::vector<std::string> whole = points();
  EXPECT_THAT(whole, ElementsAre("6 loss", "4 write", "10 loss", "8 write"));
  for (const std::int64_t last_step : {std::int64_t{10}, EventFile::kKeepAll}) {
    EventFile file = open(last_step);
    for (std::int64_t step : {4, 8}) ASSERT_TRUE(file.add_late(step, {"write", 0.5}));
    EXPECT_EQ(points(), whole);
  }
  EventFile file = open(7);
  EXPECT_THAT(points(), ElementsAre("6 loss", "4 write"));
  for (std::int64_t step : {4, 8}) ASSERT_TRUE(file.add_late(step, {"write", 0.5}));
  EXPECT_THAT(points(), ElementsAre("6 loss", "4 write", "8 write"));
}

TEST_F(EventFileTest, APartOfARecordAtTheEndIsCutOff) {
  std::string whole;
  {
    EventFile file = open(EventFile::kKeepNone);
    add(file, 2, {"loss"});
    whole = text();
    add(file, 4, {"loss"});
  }
  const std::string longer = text();
  for (std::size_t size = whole.size(); size < longer.size(); ++size) {
    write(longer.substr(0, size));
    open(9);
    EXPECT_EQ(text(), whole) << size;
  }
  for (const std::size_t zeros : {1, 11, 12, 13, 4096, 200'000}) {
    write(whole + std::string(zeros, '\0'));
    open(9);
    EXPECT_EQ(text(), whole) << zeros;
  }
}

TEST_F(EventFileTest, ABadRecordIsRefusedAndTheFileIsLeftAsItIs) {
  {
    EventFile file = open(EventFile::kKeepNone);
    for (std::int64_t step : {2, 4, 6}) add(file, step, {"loss"});
  }
  const std::string good = text();
  for (const std::size_t place : {std::size_t{0}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ 0x40);
    write(bad);
    const Error error = refusal(9);
    EXPECT_EQ(error.code, Errc::kCorrupt) << place;
    EXPECT_THAT(error.message, HasSubstr(path_));
    EXPECT_THAT(error.message, HasSubstr("move the file away"));
    EXPECT_EQ(text(), bad);
  }
  write("Not made by us, and longer than the header of a record.");
  EXPECT_EQ(refusal(9).code, Errc::kCorrupt);
  write(record_of("no event"));
  EXPECT_THAT(refusal(9).message, HasSubstr("no event"));
}

TEST_F(EventFileTest, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(temporary_.path() / "made") << "a file";
  const Error error = refusal(EventFile::kKeepNone);
  EXPECT_EQ(error.code, Errc::kIo);
  EXPECT_THAT(error.message, HasSubstr(folder_));
}

}  // namespace
}  // namespace ddp::tensorboard
