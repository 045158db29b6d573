#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/memory_file_system.h"

// Which checkpoints are kept, and what is removed.
namespace ddp::checkpoint {
namespace {

using test::MemoryFileSystem;
using test::publish_sample;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Retained : public ::testing::Test {
 protected:
  Retained() { EXPECT_TRUE(directory_.prepare()); }

  Entry save(std::int64_t step, const Retention& retention) {
    auto entry = publish_sample(files_, directory_, step, ++salt_);
    EXPECT_TRUE(entry);
    EXPECT_THAT(test::prune(directory_, retention, *entry), IsEmpty());
    return *entry;
  }
  std::vector<std::int64_t> steps() {
    std::vector<std::int64_t> result;
    const auto entries = directory_.list();
    for (const Entry& entry : *entries) result.push_back(entry.step);
    return result;
  }

  MemoryFileSystem files_;
  Directory directory_{files_, "ckpt"};
  std::uint64_t salt_ = 0;
};

TEST_F(Retained, TheNewestAndThoseOfEveryMthStep) {
  for (std::int64_t step = 5; step <= 60; step += 5) save(step, {2, 20});
  EXPECT_THAT(steps(), ElementsAre(60, 55, 40, 20));
  save(65, {2, 20});
  EXPECT_THAT(steps(), ElementsAre(65, 60, 40, 20));
  save(70, {1, 0});
  EXPECT_THAT(steps(), ElementsAre(70));
}

TEST_F(Retained, AllWithoutALimit) {
  for (std::int64_t step = 1; step <= 5; ++step) save(step, {0, 0});
  save(6, {0, 2});
  EXPECT_THAT(steps(), ElementsAre(6, 5, 4, 3, 2, 1));
}

// A step written again leaves its former generation no reason to stay.
TEST_F(Retained, AReplacedGenerationGoesAlsoOfAStepThatStays) {
  save(10, {3, 10});
  save(10, {3, 10});
  ASSERT_EQ(directory_.list()->size(), 1u);
  EXPECT_EQ(directory_.list()->front().name, "step-0000000010.1");
}

TEST_F(Retained, DamagedOnesDoNotCount) {
  for (std::int64_t step = 1; step <= 3; ++step) save(step, {0, 0});
  files_.contents("ckpt/step-0000000003/manifest.json")->pop_back();
  directory_.mark_bad("step-0000000002");
  save(4, {2, 0});
  EXPECT_THAT(steps(), ElementsAre(4, 3, 2, 1));
}

TEST_F(Retained, UnfinishedSavesGoAndNothingElse) {
  const Entry kept = save(1, {0, 0});
  ASSERT_TRUE(directory_.begin(2, "dead"));
  ASSERT_TRUE(write_durably(files_, "ckpt/.tmp-step-0000000002-dead/part-00001.json", "x"));
  ASSERT_TRUE(files_.make_directory("ckpt/.tmp-removed-step-0000000003"));
  ASSERT_TRUE(write_durably(files_, "ckpt/notes.txt", "x"));
  // A round of the same job that goes on while a save is under way.
  ASSERT_TRUE(directory_.prepare(nullptr, Directory::Leftovers::kKeep));
  const auto probe = directory_.begin_probe("alive");
  ASSERT_TRUE(probe);
  ASSERT_TRUE(write_durably(files_, join_path(*probe, "rank-00003"), "x"));
  ASSERT_TRUE(directory_.begin(5, "alive"));
  EXPECT_EQ(files_.names("ckpt").size(), 7u);
  EXPECT_THAT(directory_.remove_unfinished(4), IsEmpty());
  EXPECT_THAT(directory_.remove_retired(), IsEmpty());
  EXPECT_THAT(files_.names("ckpt"), ElementsAre(".tmp-probe-alive", ".tmp-step-0000000005-alive",
                                                "latest", "notes.txt", kept.name));
  EXPECT_EQ(files_.names(*probe).size(), 1u);
}

TEST_F(Retained, RetiredOnesAreOutOfSightBeforeTheyAreRemoved) {
  save(1, {0, 0});
  const Entry kept = save(2, {0, 0});
  EXPECT_THAT(directory_.retire({1, 0}, kept), IsEmpty());
  EXPECT_EQ(steps().size(), 1u);
  EXPECT_THAT(files_.names("ckpt"),
              ElementsAre(".tmp-removed-step-0000000001", "latest", kept.name));
  EXPECT_THAT(directory_.remove_unfinished(2), IsEmpty());
  EXPECT_EQ(files_.names("ckpt").size(), 3u);
  EXPECT_THAT(directory_.remove_retired(), IsEmpty());
  EXPECT_THAT(files_.names("ckpt"), ElementsAre("latest", kept.name));
}

TEST_F(Retained, ASaveIsFoundByItsId) {
  Manifest manifest;
  manifest.step = 7;
  manifest.rank_state = {nlohmann::json::object()};
  for (const char* id : {"first", "second"}) {
    manifest.save_id = id;
    ASSERT_TRUE(directory_.publish(*directory_.begin(7, id), manifest));
  }
  EXPECT_EQ(directory_.find_save(7, "first")->value().generation, 0);
  EXPECT_EQ(directory_.find_save(7, "second")->value().generation, 1);
  EXPECT_EQ(directory_.find_save(7, "third").value(), std::nullopt);
  EXPECT_EQ(directory_.find_save(8, "first").value(), std::nullopt);
}

}  // namespace
}  // namespace ddp::checkpoint
