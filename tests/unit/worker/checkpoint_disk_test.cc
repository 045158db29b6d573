#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_samples.h"
#include "tests/support/private_tmpfs.h"
#include "tests/support/temp_dir.h"

// The real file system: a real disk, a full one, a read-only one.
namespace ddp::checkpoint {
namespace {

using test::in_private_tmpfs;
using test::publish_sample;
using test::salt_of;
using test::SampleTensor;
using test::TempDir;
using ::testing::HasSubstr;

TEST(CheckpointDisk, PublishesReadsAndPrunesOnARealDisk) {
  const TempDir scratch;
  Directory directory(posix_file_system(), (scratch.path() / "deep/er/ckpt").string());
  ASSERT_TRUE(directory.prepare());
  for (int step = 1; step <= 4; ++step) {
    auto entry =
        publish_sample(posix_file_system(), directory, step, static_cast<std::uint64_t>(step), 2);
    ASSERT_TRUE(entry) << entry.error().message;
  }
  ASSERT_TRUE(publish_sample(posix_file_system(), directory, 4, 44, 2));
  EXPECT_EQ(salt_of(*test::open_newest_valid(directory)), 44);
  EXPECT_EQ(std::filesystem::read_symlink((scratch.path() / "deep/er/ckpt/latest").string()),
            "step-0000000004.1");
  std::vector<std::string> names =
      posix_file_system().list((scratch.path() / "deep/er/ckpt").string()).value();
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ::testing::ElementsAre("latest", "step-0000000003", "step-0000000004.1"));
  // Publishing needs no second look from a new process.
  Directory again(posix_file_system(), (scratch.path() / "deep/er/ckpt/").string());
  EXPECT_EQ(salt_of(*test::open_newest_valid(again)), 44);
}

TEST(CheckpointDisk, FailuresCarryPathAndReason) {
  const TempDir scratch;
  scratch.write("file", "x");
  auto below_a_file =
      Directory(posix_file_system(), (scratch.path() / "file/ckpt").string()).prepare();
  ASSERT_FALSE(below_a_file);
  EXPECT_EQ(below_a_file.error().code, Errc::kIo);
  EXPECT_THAT(below_a_file.error().message, HasSubstr("file"));
  EXPECT_THAT(below_a_file.error().message, HasSubstr("Not a directory"));
  auto over_a_file = Directory(posix_file_system(), (scratch.path() / "file").string()).prepare();
  ASSERT_FALSE(over_a_file);
  EXPECT_THAT(over_a_file.error().message, HasSubstr("Not a directory"));
  EXPECT_EQ(posix_file_system().open_file((scratch.path() / "none").string()).error().code,
            Errc::kNotFound);
  EXPECT_EQ(posix_file_system().open_file(scratch.path().string()).error().code, Errc::kCorrupt);
  EXPECT_EQ(posix_file_system().make_directory((scratch.path() / "file").string()).error().code,
            Errc::kExists);
  EXPECT_EQ(posix_file_system().create_file((scratch.path() / "file").string()).error().code,
            Errc::kExists);
}

TEST(CheckpointDisk, AFullDiskFailsCleanlyAndTheOldOneStays) {
  const TempDir scratch;
  const std::string answer =
      in_private_tmpfs(scratch.path().string(), "size=256k", [&]() -> std::string {
        Directory directory(posix_file_system(), (scratch.path() / "ckpt").string());
        if (!directory.prepare()) return "prepare failed";
        if (!publish_sample(posix_file_system(), directory, 1, 11)) return "the small one failed";
        auto temporary = directory.begin(2, "big");
        if (!temporary) return "begin failed";
        const std::vector<SampleTensor> big = {{"big", TensorType::kF64, {100000}}};
        auto written =
            write_safetensors(posix_file_system(), join_path(*temporary, "s"), test::views_of(big));
        if (written) return "800 kB fit into 256 kB";
        std::string result = written.error().message;
        if (written.error().code != Errc::kIo) result += " with another code";
        if (!directory.discard(*temporary)) result += "; cannot be removed";
        if (posix_file_system().list((scratch.path() / "ckpt").string())->size() != 2)
          result += "; a leftover";
        if (salt_of(*test::open_newest_valid(directory)) != 11) result += "; the old one is lost";
        if (!publish_sample(posix_file_system(), directory, 3, 33)) result += "; no further save";
        return result;
      });
  if (answer.empty()) GTEST_SKIP() << "needs root to mount a small tmpfs";
  EXPECT_THAT(answer, ::testing::MatchesRegex("cannot write /.*: No space left on device"));
}

TEST(CheckpointDisk, AReadOnlyFolderIsFoundOutByPrepare) {
  const TempDir scratch;
  const std::string answer =
      in_private_tmpfs(scratch.path().string(), "size=256k", [&]() -> std::string {
        Directory directory(posix_file_system(), (scratch.path() / "ckpt").string());
        if (!directory.prepare()) return "prepare failed";
        if (!publish_sample(posix_file_system(), directory, 1, 11)) return "publish failed";
        if (::mount("tmpfs", scratch.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY,
                    "size=256k") != 0) {
          return std::strerror(errno);
        }
        auto prepared = directory.prepare();
        if (prepared) return "prepare succeeded";
        if (prepared.error().code != Errc::kIo) return "another code";
        if (salt_of(*test::open_newest_valid(directory)) != 11) return "cannot be loaded";
        return prepared.error().message;
      });
  if (answer.empty()) GTEST_SKIP() << "needs root to mount a small tmpfs";
  EXPECT_THAT(answer, ::testing::MatchesRegex("cannot create /.*/ckpt/.*: Read-only file system"));
}

}  // namespace
}  // namespace ddp::checkpoint
