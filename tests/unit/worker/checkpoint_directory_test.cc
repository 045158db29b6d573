#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/memory_file_system.h"
#include "worker/checkpoint/directory.h"

namespace ddp::checkpoint {
namespace {

using test::MemoryFileSystem;
using test::publish_sample;
using test::salt_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() { EXPECT_TRUE(directory_.prepare()); }

  std::string publish(std::int64_t step, std::uint64_t salt, int keep = 0) {
    auto entry = publish_sample(files_, directory_, step, salt, keep);
    EXPECT_TRUE(entry) << entry.error().message;
    return entry ? entry->name : "";
  }

  std::int64_t newest_salt() {
    skipped_.clear();
    auto found = test::open_newest_valid(directory_, &skipped_);
    EXPECT_TRUE(found);
    return salt_of(*found);
  }

  std::string& contents(const std::string& path) { return *files_.contents("run/ckpt/" + path); }

  MemoryFileSystem files_;
  Directory directory_{files_, "run/ckpt"};
  std::vector<std::string> skipped_;
};

TEST(EntryName, OneSpellingCounts) {
  EXPECT_EQ(entry_name(1234, 0), "step-0000001234");
  EXPECT_EQ(entry_name(1234, 2), "step-0000001234.2");
  EXPECT_EQ(entry_name(123456789012, 0), "step-123456789012");
  for (const auto& [step, generation] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0}, {7, 3}, {99999999999, 0}}) {
    auto entry = parse_entry_name(entry_name(step, generation));
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->step, step);
    EXPECT_EQ(entry->generation, generation);
  }
  for (const char* name :
       {"", "step-", "step-1", "step-00000001234", "step-0000001234.", "step-0000001234.0",
        "step-0000001234.01", "step-0000001234.x", "step-000000123x", "step--000001234",
        "step-0000001234~", "latest", ".tmp-step-0000001234-x", "step-99999999999999999999"}) {
    EXPECT_FALSE(parse_entry_name(name)) << name;
  }
}

TEST_F(DirectoryTest, PublishesUnderTheStepsNameAndPointsLatestAtIt) {
  EXPECT_EQ(publish(5, 50), "step-0000000005");
  EXPECT_EQ(publish(12, 120), "step-0000000012");
  EXPECT_THAT(files_.names("run/ckpt"),
              ElementsAre("latest", "step-0000000005", "step-0000000012"));
  EXPECT_THAT(files_.names("run/ckpt/step-0000000012"),
              ElementsAre("manifest.json", "rank-00000.safetensors", "shard-00000.safetensors"));
  EXPECT_EQ(files_.link_target("run/ckpt/latest"), "step-0000000012");
  EXPECT_EQ(newest_salt(), 120);
  EXPECT_THAT(skipped_, IsEmpty());
}

TEST_F(DirectoryTest, AStepWrittenAgainReplacesTheFormer) {
  publish(5, 50);
  EXPECT_EQ(publish(5, 51), "step-0000000005.1");
  EXPECT_EQ(publish(5, 52), "step-0000000005.2");
  EXPECT_THAT(files_.names("run/ckpt"), ElementsAre("latest", "step-0000000005.2"));
  EXPECT_EQ(newest_salt(), 52);
}

TEST_F(DirectoryTest, AnEmptyOrMissingFolderHasNothingToLoad) {
  EXPECT_EQ(newest_salt(), -1);
  Directory nowhere(files_, "no/such/folder");
  auto found = test::open_newest_valid(nowhere);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->has_value());
}

TEST_F(DirectoryTest, PrepareRemovesLeftoversAndNothingElse) {
  publish(5, 50);
  auto temporary = directory_.begin(6, "crashed");
  ASSERT_TRUE(temporary);
  ASSERT_TRUE(write_durably(files_, join_path(*temporary, "shard-00000.safetensors"), "half"));
  ASSERT_TRUE(write_durably(files_, "run/ckpt/notes.txt", "a user's"));
  ASSERT_TRUE(files_.make_symlink("step-0000000005", "run/ckpt/.tmp-latest"));
  EXPECT_EQ(newest_salt(), 50);
  ASSERT_TRUE(directory_.prepare());
  EXPECT_THAT(files_.names("run/ckpt"), ElementsAre("latest", "notes.txt", "step-0000000005"));
  // The leftover link was removed, and not the checkpoint that it pointed to.
  EXPECT_EQ(newest_salt(), 50);
}

// Also while a save of this job may be under way.
TEST_F(DirectoryTest, PrepareGoesOnFromAProbeThatWasKilled) {
  ASSERT_TRUE(write_durably(files_, "run/ckpt/.tmp-probe", "pro"));
  auto temporary = directory_.begin(6, "alive");
  ASSERT_TRUE(directory_.prepare(nullptr, Directory::Leftovers::kKeep));
  EXPECT_THAT(files_.names("run/ckpt"), ElementsAre(".tmp-step-0000000006-alive"));
}

TEST_F(DirectoryTest, PrepareFailsWhereAProbeCannotBeWritten) {
  for (std::size_t operation = 0; operation < 5; ++operation) {
    MemoryFileSystem files;
    ASSERT_TRUE(files.make_directory("d"));
    files.fail_at(files.operations() + 1 + operation, MemoryFileSystem::Fault::kNoSpace);
    auto prepared = Directory(files, "d").prepare();
    ASSERT_FALSE(prepared) << operation;
    EXPECT_EQ(prepared.error().code, Errc::kIo);
    EXPECT_THAT(prepared.error().message, HasSubstr("d/.tmp-probe"));
  }
}

TEST_F(DirectoryTest, EveryFlippedByteIsFoundAndTheOlderOneUsed) {
  publish(5, 50);
  publish(6, 60);
  const std::string folder = "step-0000000006/";
  for (const std::string& name : files_.names("run/ckpt/step-0000000006")) {
    std::string& text = contents(folder + name);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char good = text[i];
      text[i] = static_cast<char>(good ^ (1 << (i % 8)));
      ASSERT_EQ(newest_salt(), 50) << name << " byte " << i;
      ASSERT_THAT(skipped_, SizeIs(1));
      EXPECT_THAT(skipped_[0], HasSubstr("run/ckpt/step-0000000006 passed over: "));
      EXPECT_THAT(skipped_[0], HasSubstr(name));
      text[i] = good;
    }
  }
  EXPECT_EQ(newest_salt(), 60);
}

TEST_F(DirectoryTest, EveryTruncatedMissingOrLongerFileIsFound) {
  publish(5, 50);
  publish(6, 60);
  const std::string folder = "step-0000000006/";
  for (const std::string& name : files_.names("run/ckpt/step-0000000006")) {
    std::string& text = contents(folder + name);
    const std::string good = text;
    for (std::size_t size = 0; size < good.size(); ++size) {
      text = good.substr(0, size);
      ASSERT_EQ(newest_salt(), 50) << name << " of " << size;
    }
    text = good + "x";
    ASSERT_EQ(newest_salt(), 50);
    ASSERT_TRUE(files_.remove_file("run/ckpt/" + folder + name));
    ASSERT_EQ(newest_salt(), 50);
    EXPECT_THAT(skipped_[0], HasSubstr(name + " does not exist"));
    ASSERT_TRUE(write_durably(files_, "run/ckpt/" + folder + name, good));
  }
  EXPECT_EQ(newest_salt(), 60);
}

TEST_F(DirectoryTest, SkipsUnreadableOnesAndSaysWhy) {
  publish(5, 50);
  publish(6, 60);
  publish(7, 70);
  contents("step-0000000007/manifest.json")[3] ^= 1;
  files_.fail_opening("step-0000000006/rank-00000");
  EXPECT_EQ(newest_salt(), 50);
  ASSERT_THAT(skipped_, SizeIs(2));
  EXPECT_THAT(skipped_[0], HasSubstr("its checksum is"));
  EXPECT_THAT(skipped_[1], HasSubstr("Input/output error"));
}

TEST_F(DirectoryTest, AFolderWithTheNameOfAnotherStepIsCorrupt) {
  publish(5, 50);
  ASSERT_TRUE(files_.rename("run/ckpt/step-0000000005", "run/ckpt/step-0000000009"));
  EXPECT_EQ(newest_salt(), -1);
  EXPECT_THAT(skipped_[0], HasSubstr("is for step 5, but its folder for step 9"));
}

TEST_F(DirectoryTest, ACheckpointWhoseShardBelongsToAnotherManifestIsCorrupt) {
  publish(5, 50);
  // The manifest is sound and every file has its checksum, but a tensor has another shape than the
  // shard says.
  auto entries = directory_.list();
  Manifest manifest = directory_.verify((*entries)[0]).value();
  manifest.tensors[0].shape = {5, 3};
  contents("step-0000000005/manifest.json") = manifest_to_text(manifest).value();
  EXPECT_EQ(newest_salt(), -1);
  EXPECT_THAT(skipped_[0], HasSubstr("as the manifest describes it"));
  manifest.tensors.erase(manifest.tensors.begin());
  contents("step-0000000005/manifest.json") = manifest_to_text(manifest).value();
  EXPECT_EQ(newest_salt(), -1);
  EXPECT_THAT(skipped_[0], HasSubstr("has 2 tensors, but the manifest lists 1"));
}

TEST_F(DirectoryTest, KeepsTheNewest) {
  for (int step = 1; step <= 6; ++step) publish(step, 1, 3);
  EXPECT_THAT(files_.names("run/ckpt"),
              ElementsAre("latest", "step-0000000004", "step-0000000005", "step-0000000006"));
  publish(7, 1, 1);
  EXPECT_THAT(files_.names("run/ckpt"), ElementsAre("latest", "step-0000000007"));
}

TEST_F(DirectoryTest, DamagedOnesDoNotCountAsKept) {
  std::uint64_t salt = 10;
  for (int step = 1; step <= 4; ++step) publish(step, ++salt);
  contents("step-0000000004/manifest.json")[0] ^= 1;                // Seen by looking.
  contents("step-0000000003/shard-00000.safetensors").back() ^= 1;  // Seen by reading all.
  EXPECT_EQ(newest_salt(), 12);
  publish(5, 15, 3);
  EXPECT_THAT(files_.names("run/ckpt"),
              ElementsAre("latest", "step-0000000001", "step-0000000002", "step-0000000003",
                          "step-0000000004", "step-0000000005"));
  publish(6, 16, 3);
  EXPECT_THAT(files_.names("run/ckpt"),
              ElementsAre("latest", "step-0000000002", "step-0000000003", "step-0000000004",
                          "step-0000000005", "step-0000000006"));
}

TEST_F(DirectoryTest, NeverRemovesTheOneJustPublished) {
  // A run that fell back to step 1 writes step 2 beside three newer ones that only look complete.
  for (int step = 3; step <= 5; ++step) publish(step, 1);
  publish(2, 20, 2);
  EXPECT_THAT(files_.names("run/ckpt"),
              ElementsAre("latest", "step-0000000002", "step-0000000004", "step-0000000005"));
}

TEST_F(DirectoryTest, AFailedSaveLeavesTheFolderAsItWas) {
  publish(5, 50);
  const auto names = files_.names("run/ckpt");
  for (const auto fault : {MemoryFileSystem::Fault::kIo, MemoryFileSystem::Fault::kNoSpace}) {
    int failures = 0;
    for (std::size_t operation = 0;; ++operation) {
      ASSERT_LT(operation, 1000u);
      MemoryFileSystem files = files_.after_kill();
      Directory directory(files, "run/ckpt");
      files.fail_at(operation, fault);
      auto entry = publish_sample(files, directory, 6, 60);
      const bool reached = files.operations() > operation;
      files.stop_failing();
      auto found = test::open_newest_valid(directory);
      if (entry) {
        EXPECT_EQ(salt_of(*found), 60);
      } else {
        ++failures;
        EXPECT_EQ(entry.error().code, Errc::kIo);
        EXPECT_EQ(salt_of(*found), 50) << "operation " << operation;
        EXPECT_EQ(files.names("run/ckpt"), names) << "operation " << operation;
        // And training goes on: the next one succeeds.
        EXPECT_TRUE(publish_sample(files, directory, 7, 70));
        EXPECT_EQ(salt_of(*test::open_newest_valid(directory)), 70);
      }
      if (!reached) break;
    }
    EXPECT_GT(failures, 15);
  }
}

}  // namespace
}  // namespace ddp::checkpoint
