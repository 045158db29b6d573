// Writers whose disk is slow: how long the publisher waits for them, and what they say meanwhile.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/support/plain_disk.h"
#include "tests/support/snapshot_samples.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/save_folder.h"
#include "worker/checkpoint/snapshot_writer.h"

namespace ddp::checkpoint {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): durations.
using test::MemoryFileSystem;
using test::SampleSave;
using test::share_of;
using ::testing::HasSubstr;

// Two ranks; the test is rank 1, and rank 0 waits for it. Its time is what it has slept.
class CheckpointPatience : public ::testing::Test {
 protected:
  CheckpointPatience() {
    save_ = {.directory = "d", .save_id = "save", .world_size = 2};
    EXPECT_TRUE(Directory(files_, "d").prepare());
    options_.part_timeout = 10s;
    options_.round_lasts = [this] { return round_lasts_; };
    options_.now = [this] { return now_; };
    options_.sleep = [this](std::chrono::nanoseconds time) {
      now_ += std::chrono::duration_cast<Clock::duration>(time);
      const auto act = on_time_;  // It may replace itself.
      if (act) act(now_ - TimePoint());
    };
  }
  Result<Written> publish() {
    test::SampleShare share = share_of(save_, 0);
    share.plan.timeout = 100s;
    return write_snapshot(files_, share.live(), options_);
  }
  double seconds() const { return std::chrono::duration<double>(now_ - TimePoint()).count(); }

  MemoryFileSystem files_;
  SampleSave save_;
  WriterOptions options_;
  bool round_lasts_ = true;
  TimePoint now_;
  std::function<void(std::chrono::nanoseconds)> on_time_;
};

TEST_F(CheckpointPatience, WhileTheRoundLastsASilentWriterWaitsForItsDisk) {
  on_time_ = [this](std::chrono::nanoseconds time) {
    if (time < 60s) return;
    on_time_ = nullptr;
    EXPECT_TRUE(write_snapshot(files_, share_of(save_, 1).live()));
  };
  const auto written = publish();
  EXPECT_TRUE(written) << written.error().message;
  EXPECT_GE(seconds(), 60);
}

TEST_F(CheckpointPatience, NotLongerThanTheSaveMayTake) {
  const auto written = publish();
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::kTimeout);
  EXPECT_THAT(written.error().message,
              HasSubstr("nothing came from 1 of 2 ranks for 100000 ms (rank 1)"));
  EXPECT_GE(seconds(), 100);
  EXPECT_LT(seconds(), 102);
}

TEST_F(CheckpointPatience, OnceTheRoundIsOverASilentWriterMayBeGone) {
  on_time_ = [this](std::chrono::nanoseconds time) { round_lasts_ = time < 30s; };
  const auto written = publish();
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().message, HasSubstr("for 10000 ms"));
  EXPECT_GE(seconds(), 30);
  EXPECT_LT(seconds(), 32);
}

TEST_F(CheckpointPatience, ForAShareThatIsLostWithItsNodeNobodyWaits) {
  on_time_ = [this](std::chrono::nanoseconds time) { round_lasts_ = time < 3s; };
  options_.lost_ranks = [this] {
    return round_lasts_ ? std::set<Rank>() : std::set<Rank>{0, 1, 7};
  };
  const auto written = publish();
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Errc::kAborted);
  EXPECT_EQ(written.error().message,
            "the nodes of 1 of 2 ranks were lost before their shares were written (rank 1)");
  EXPECT_GE(seconds(), 3);
  EXPECT_LT(seconds(), 4);
}

TEST_F(CheckpointPatience, AShareThatIsThereIsNotLost) {
  round_lasts_ = false;
  options_.lost_ranks = [] { return std::set<Rank>{1}; };
  ASSERT_TRUE(write_snapshot(files_, share_of(save_, 1).live()));
  EXPECT_TRUE(publish());
}

TEST_F(CheckpointPatience, OneThatSaysThatItLivesIsWaitedForAllTheSame) {
  round_lasts_ = false;
  const test::SampleShare share = share_of(save_, 1);
  SaveFolder folder(files_, share.plan);
  int said = 0;
  on_time_ = [&](std::chrono::nanoseconds time) {
    if (time >= 60s) {
      on_time_ = nullptr;
      EXPECT_TRUE(write_snapshot(files_, share.live()));
    } else if (time >= said * 4s) {
      folder.add_life(fmt::format("stands for {} s", 4 * said++));
    }
  };
  const auto written = publish();
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(said, 15);
  for (const std::string& name : files_.names(written->path)) {
    EXPECT_FALSE(SaveFolder::is_for_writers(name)) << name;
  }
}

TEST_F(CheckpointPatience, ItsLastWordsAreInTheError) {
  round_lasts_ = false;
  const test::SampleShare share = share_of(save_, 1);
  SaveFolder folder(files_, share.plan);
  bool said = false;
  on_time_ = [&](std::chrono::nanoseconds time) {
    if (time >= 2s && !std::exchange(said, true)) {
      folder.add_life("shard-00001.safetensors has been stuck in fsync for 2 s on node2");
    }
  };
  const auto written = publish();
  ASSERT_FALSE(written);
  EXPECT_THAT(
      written.error().message,
      HasSubstr("; rank 1 said last: shard-00001.safetensors has been stuck in fsync for 2 s"));
}

// The publisher itself was stopped, or its disk stood, too.
TEST_F(CheckpointPatience, TimeInWhichThePublisherDidNotLookIsNoSilence) {
  round_lasts_ = false;
  int stops = 0;
  on_time_ = [&](std::chrono::nanoseconds time) {
    if (stops == 3) {
      on_time_ = nullptr;
      EXPECT_TRUE(write_snapshot(files_, share_of(save_, 1).live()));
    } else if (time >= 1s) {
      ++stops;
      now_ += 60s;
    }
  };
  const auto written = publish();
  EXPECT_TRUE(written) << written.error().message;
  EXPECT_GE(seconds(), 180);
}

// The real disk, on which the fsync of one file stands until the test lets it go.
class StandingDisk final : public test::PlainDisk {
 public:
  explicit StandingDisk(std::string victim) : victim_(std::move(victim)) {}

  void go() {
    {
      const std::lock_guard lock(mutex_);
      stands_ = false;
    }
    changed_.notify_all();
  }

  Result<std::unique_ptr<WritableFile>> create_file(const std::string& path) override {
    auto file = PlainDisk::create_file(path);
    if (!file) return file.error();
    return std::unique_ptr<WritableFile>(
        std::make_unique<File>(*this, path.find(victim_) != std::string::npos, std::move(*file)));
  }

 private:
  class File final : public WritableFile {
   public:
    File(StandingDisk& disk, bool is_victim, std::unique_ptr<WritableFile> file)
        : disk_(disk), is_victim_(is_victim), file_(std::move(file)) {}
    Result<void> sync() override {
      if (is_victim_) disk_.stand();
      return file_->sync();
    }
    Result<void> close() override { return file_->close(); }

   private:
    Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
      if (auto written = file_->append(bytes); !written) return written.error();
      return bytes.size();
    }
    StandingDisk& disk_;
    bool is_victim_;
    std::unique_ptr<WritableFile> file_;
  };

  void stand() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !stands_; });
  }

  std::string victim_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stands_ = true;
};

// The publisher would give up after a silence of 6 s; the test lets the disk go when the writer has
// said more often than that that it lives.
TEST(CheckpointStanding, AWriterInALongFsyncSaysSo) {
  test::TempDir scratch;
  const std::string directory = (scratch.path() / "ckpt").string();
  ASSERT_TRUE(Directory(posix_file_system(), directory).prepare());
  const SampleSave save{.directory = directory, .save_id = "save", .world_size = 2};
  StandingDisk disk("shard-00001");
  std::vector<StandingCall> told;
  Result<Written> contributed = Written();
  std::thread contributor([&] {
    WriterOptions options;
    options.on_standing = [&](const StandingCall& call) {
      told.push_back(call);
      if (told.size() == 8) disk.go();
    };
    const test::SampleShare share = share_of(save, 1);
    contributed = write_snapshot(disk, share.live(), options);
  });
  WriterOptions options;
  options.part_timeout = 6s;
  const test::SampleShare share = share_of(save, 0);
  const auto written = write_snapshot(posix_file_system(), share.live(), options);
  disk.go();
  contributor.join();
  EXPECT_TRUE(contributed) << contributed.error().message;
  ASSERT_TRUE(written) << written.error().message;
  ASSERT_GE(told.size(), 8u);
  EXPECT_EQ(told[0].call, "fsync");
  EXPECT_THAT(told[7].text(), HasSubstr("shard-00001.safetensors has been stuck in fsync for "));
  EXPECT_GE(told[7].seconds, told[0].seconds + 6.5);
  const auto names = posix_file_system().list(written->path);
  ASSERT_TRUE(names);
  for (const std::string& name : *names) {
    EXPECT_FALSE(SaveFolder::is_for_writers(name)) << name;
  }
}

}  // namespace
}  // namespace ddp::checkpoint
