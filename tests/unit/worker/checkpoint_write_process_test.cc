#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "tests/support/full_matrix.h"
#include "tests/support/private_tmpfs.h"
#include "tests/support/process.h"
#include "tests/support/snapshot_samples.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/directory_lock.h"

// The real `ddp-checkpoint write` on a real disk: several at a time, killed, on a full disk; and
// its lock.
namespace ddp::checkpoint {
namespace {

using namespace std::chrono_literals;  // NOLINT(google-build-using-namespace): deadlines.
using nlohmann::json;
using test::fault_of;
using test::Process;
using test::SampleSave;
using test::share_of;
using test::snapshot_of;
using test::TempDir;
using ::testing::HasSubstr;

std::vector<std::string> command(int snapshot_fd, int lock_fd = -1) {
  std::vector<std::string> result = {std::string(std::getenv("DDP_BIN_DIR")) + "/ddp-checkpoint",
                                     "write", "--snapshot-fd", std::to_string(snapshot_fd)};
  if (lock_fd >= 0) {
    result.push_back("--lock-fd");
    result.push_back(std::to_string(lock_fd));
  }
  return result;
}

test::ProcessOptions keeping(std::vector<int> descriptors) {
  return {.environment = {}, .folder = "", .inherited = std::move(descriptors)};
}

std::unique_ptr<Process> start(const SnapshotMemory& memory, int lock_fd = -1) {
  std::vector<int> inherited = {memory.fd()};
  if (lock_fd >= 0) inherited.push_back(lock_fd);
  return std::make_unique<Process>(command(memory.fd(), lock_fd), keeping(inherited));
}

std::string newest_fault(const SampleSave& save) {
  Directory directory(posix_file_system(), save.directory);
  std::vector<std::string> skipped;
  auto found = test::open_newest_valid(directory, &skipped);
  if (!found) return found.error().message;
  if (!skipped.empty()) return skipped[0];
  if (!*found) return "there is none";
  return fault_of(posix_file_system(), **found, save);
}

class CheckpointWrite : public ::testing::Test {
 protected:
  CheckpointWrite() { EXPECT_TRUE(Directory(posix_file_system(), folder_).prepare()); }

  SampleSave save_of(std::int64_t step, int world_size, std::int64_t elements = 1000) const {
    return {.directory = folder_,
            .save_id = "save" + std::to_string(step),
            .step = step,
            .salt = static_cast<std::uint64_t>(step),
            .world_size = world_size,
            .elements = elements,
            .retention = {1, 0}};
  }

  // A writer that has ended may have left old checkpoints to be removed behind it.
  std::vector<std::string> names_after_cleaning() const {
    std::vector<std::string> names;
    EXPECT_TRUE(test::wait_until([&] {
      names = posix_file_system().list(folder_).value();
      return std::none_of(names.begin(), names.end(), [](const std::string& name) {
        return name.starts_with(".tmp-removed-");
      });
    }));
    return names;
  }

  TempDir scratch_;
  std::string folder_ = (scratch_.path() / "ckpt").string();
};

TEST_F(CheckpointWrite, PublishesWhatSeveralProcessesWrite) {
  const SampleSave save = save_of(7, 3);
  std::vector<SnapshotMemory> snapshots;
  std::vector<std::unique_ptr<Process>> writers;
  for (Rank rank = 0; rank < 3; ++rank) snapshots.push_back(snapshot_of(share_of(save, rank)));
  for (const SnapshotMemory& memory : snapshots) writers.push_back(start(memory));
  for (Rank rank = 0; rank < 3; ++rank) {
    Process& writer = *writers[static_cast<std::size_t>(rank)];
    ASSERT_EQ(writer.wait(), 0) << writer.out() << writer.err();
    const json line = json::parse(writer.out());
    EXPECT_EQ(line.at("ok"), true);
    EXPECT_EQ(line.at("path"), rank == 0 ? folder_ + "/step-0000000007" : "");
    EXPECT_GT(line.at("bytes"), 4000);
    EXPECT_GT(line.at("seconds"), 0.0);
    EXPECT_EQ(line.at("warnings"), json::array());
    EXPECT_EQ(writer.out().back(), '\n');
  }
  EXPECT_EQ(newest_fault(save), "");
  EXPECT_EQ(std::filesystem::read_symlink(folder_ + "/latest"), "step-0000000007");
}

TEST_F(CheckpointWrite, HearsOverAPipeThatARankIsLost) {
  const SnapshotMemory memory = snapshot_of(share_of(save_of(7, 2), 0));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reads(ends[0]);
  const UniqueFd writes(ends[1]);
  auto words = command(memory.fd());
  words.insert(words.end(), {"--round-fd", std::to_string(reads.get())});
  Process writer(words, keeping({memory.fd(), reads.get()}));
  for (const std::string text : {"over\nlo", "st 1\n"})
    ASSERT_EQ(::write(writes.get(), text.data(), text.size()), std::ssize(text));
  EXPECT_EQ(writer.wait(), kExitCheckpointFailed);
  EXPECT_THAT(json::parse(writer.out()).at("error").get<std::string>(), HasSubstr("(rank 1)"));
  EXPECT_THAT(writer.out(), HasSubstr("were lost before"));
}

// The one that gives up is often the first to come, since it writes nothing.
TEST_F(CheckpointWrite, RankZeroLearnsOfOneThatGaveUpBeforeTheFolderWasMade) {
  const SampleSave save = save_of(7, 2);
  const SnapshotMemory other = snapshot_of(share_of(save, 1));
  auto words = command(other.fd());
  words.insert(words.end(), {"--give-up", "no disk today"});
  Process gives_up(words, keeping({other.fd()}));
  EXPECT_EQ(gives_up.wait(), kExitCheckpointFailed);
  const SnapshotMemory memory = snapshot_of(share_of(save, 0));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reads(ends[0]);
  const UniqueFd writes(ends[1]);  // While it is open, the round lasts, and rank 0 would wait.
  words = command(memory.fd());
  words.insert(words.end(), {"--round-fd", std::to_string(reads.get())});
  Process writer(words, keeping({memory.fd(), reads.get()}));
  EXPECT_EQ(writer.wait(), kExitCheckpointFailed);
  EXPECT_EQ(json::parse(writer.out()).at("error"),
            "rank 1 could not write its share: no disk today");
  EXPECT_THAT(names_after_cleaning(), testing::IsEmpty());
}

TEST_F(CheckpointWrite, RefusesWhatIsNoSnapshot) {
  const auto bare = test::run(command(99));
  EXPECT_EQ(bare.status, kExitUsage);
  EXPECT_THAT(bare.err, HasSubstr("--snapshot-fd 99"));
  const auto none = test::run({command(0)[0], "write"});
  EXPECT_EQ(none.status, kExitUsage);
  EXPECT_THAT(none.err, HasSubstr("--snapshot-fd is needed"));

  auto memory = SnapshotMemory::create(8192);
  ASSERT_TRUE(memory);
  auto unsealed = test::run(command(memory->fd()), keeping({memory->fd()}));
  EXPECT_EQ(unsealed.status, kExitDataInvalid);
  EXPECT_EQ(json::parse(unsealed.out).at("ok"), false);
  EXPECT_THAT(json::parse(unsealed.out).at("error").get<std::string>(),
              HasSubstr("not a snapshot"));

  const std::string file = scratch_.write("file", std::string(8192, 'x'));
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  auto plain = test::run(command(fd.get()), keeping({fd.get()}));
  EXPECT_EQ(plain.status, kExitDataInvalid);
  EXPECT_THAT(plain.out, HasSubstr("not memory of fixed size"));
}

TEST_F(CheckpointWrite, AFolderThatIsGoneIsAFailureWithItsName) {
  const SnapshotMemory memory = snapshot_of(share_of(save_of(1, 1), 0));
  std::filesystem::remove_all(folder_);
  const auto writer = test::run(command(memory.fd()), keeping({memory.fd()}));
  EXPECT_EQ(writer.status, kExitCheckpointFailed);
  EXPECT_THAT(json::parse(writer.out).at("error").get<std::string>(), HasSubstr(folder_));
}

// Writers are killed at moments that dice choose and started again, as the agent does.
TEST_F(CheckpointWrite, KilledAtAnyMomentAndStartedAgainItFinishes) {
  const char* given = std::getenv("DDP_TEST_SEED");
  std::random_device device;
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : device();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 dice(seed);
  const int saves = test::full_matrix() ? 300 : 12;
  int killed = 0;
  for (int step = 1; step <= saves; ++step) {
    const SampleSave save = save_of(step, 2, 200'000);
    const SnapshotMemory snapshots[] = {snapshot_of(share_of(save, 0)),
                                        snapshot_of(share_of(save, 1))};
    std::unique_ptr<Process> writers[] = {start(snapshots[0]), start(snapshots[1])};
    for (int kills = 0; kills < 3; ++kills) {
      const std::chrono::microseconds moment(dice() % 15'000);
      std::this_thread::sleep_for(moment);  // sleep: the moment of the kill is what is tried out.
      const std::size_t victim = dice() % 2;
      writers[victim]->kill(SIGKILL);
      if (writers[victim]->wait() == 128 + SIGKILL) ++killed;
      writers[victim] = start(snapshots[victim]);
    }
    for (auto& writer : writers) ASSERT_EQ(writer->wait(), 0) << writer->out() << writer->err();
    ASSERT_EQ(newest_fault(save), "") << "save " << step;
    // The one before is gone, and nothing is left lying about.
    EXPECT_THAT(names_after_cleaning(),
                ::testing::UnorderedElementsAre("latest", entry_name(step, 0)));
  }
  std::printf("%d killed\n", killed);
  EXPECT_GT(killed, 0);
}

TEST_F(CheckpointWrite, AFullDiskFailsAndTheOldOneStays) {
  const std::string answer =
      test::in_private_tmpfs(scratch_.path().string(), "size=1m", [&]() -> std::string {
        if (!Directory(posix_file_system(), folder_).prepare()) return "prepare failed";
        const SampleSave small = save_of(1, 1);
        const SnapshotMemory first = snapshot_of(share_of(small, 0));
        if (test::run(command(first.fd()), keeping({first.fd()})).status != 0) return "no first";
        // The share of rank 1 does not fit; rank 0 learns of it at once.
        const SampleSave large = save_of(2, 2, 500'000);
        const SnapshotMemory snapshots[] = {snapshot_of(share_of(save_of(2, 2), 0)),
                                            snapshot_of(share_of(large, 1))};
        auto publisher = start(snapshots[0]);
        const auto has_part = [&] {
          return std::filesystem::exists(folder_ + "/.tmp-step-0000000002-save2/part-00000.json");
        };
        if (!test::wait_until(has_part)) return "rank 0 wrote nothing";
        const auto other = test::run(command(snapshots[1].fd()), keeping({snapshots[1].fd()}));
        if (other.status != kExitCheckpointFailed) return "rank 1: " + other.out + other.err;
        const auto begin = std::chrono::steady_clock::now();
        if (publisher->wait() != kExitCheckpointFailed) return "rank 0: " + publisher->out();
        if (std::chrono::steady_clock::now() - begin > 9s) return "it took the time to give up";
        if (newest_fault(small) != "") return newest_fault(small);
        if (names_after_cleaning().size() != 2) return "a leftover";
        const SampleSave next = save_of(3, 1);
        const SnapshotMemory third = snapshot_of(share_of(next, 0));
        if (test::run(command(third.fd()), keeping({third.fd()})).status != 0) return "no third";
        if (newest_fault(next) != "") return newest_fault(next);
        return json::parse(publisher->out()).at("error").get<std::string>();
      });
  if (answer.empty()) GTEST_SKIP() << "needs root to mount a small tmpfs";
  EXPECT_THAT(answer, ::testing::MatchesRegex("rank 1 could not write its share: cannot write "
                                              "/.*: No space left on device"));
}

TEST_F(CheckpointWrite, AReadOnlyFolderFailsAndTheOldOneStays) {
  const std::string answer =
      test::in_private_tmpfs(scratch_.path().string(), "size=1m", [&]() -> std::string {
        if (!Directory(posix_file_system(), folder_).prepare()) return "prepare failed";
        const SampleSave small = save_of(1, 1);
        const SnapshotMemory first = snapshot_of(share_of(small, 0));
        if (test::run(command(first.fd()), keeping({first.fd()})).status != 0) return "no first";
        if (::mount("tmpfs", scratch_.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m") !=
            0) {
          return "no remount";
        }
        const SnapshotMemory second = snapshot_of(share_of(save_of(2, 1), 0));
        const auto writer = test::run(command(second.fd()), keeping({second.fd()}));
        if (writer.status != kExitCheckpointFailed) return "it ended with success";
        if (newest_fault(small) != "") return newest_fault(small);
        if (DirectoryLock::acquire(folder_, "job").error().code != Errc::kIo) return "a lock";
        return json::parse(writer.out).at("error").get<std::string>();
      });
  if (answer.empty()) GTEST_SKIP() << "needs root to mount a small tmpfs";
  EXPECT_THAT(answer, HasSubstr("Read-only file system"));
}

// A process that holds the folder's lock until it is killed.
class Holder {
 public:
  Holder(const std::string& folder, const std::string& job) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      auto lock = DirectoryLock::acquire(folder, job);
      const char answer = lock && lock->held() ? 'y' : 'n';
      if (::write(ends[1], &answer, 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    ::close(ends[1]);
    char answer = 0;
    EXPECT_EQ(::read(ends[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(ends[0]);
  }
  ~Holder() { kill(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  void kill() {
    if (pid_ > 1) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_F(CheckpointWrite, AnotherJobIsRefusedUntilTheHolderIsKilled) {
  Holder holder(folder_, "first job");
  auto refused = DirectoryLock::acquire(folder_, "second job");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kExists);
  EXPECT_THAT(refused.error().message, HasSubstr(folder_));
  EXPECT_THAT(refused.error().message,
              HasSubstr("job first job, process " + std::to_string(holder.pid()) + " on "));
  holder.kill();
  auto taken = DirectoryLock::acquire(folder_, "second job", 0ms);
  ASSERT_TRUE(taken) << taken.error().message;
  EXPECT_TRUE(taken->held());
  EXPECT_EQ(taken->warning(), "");
  taken->release();
  EXPECT_FALSE(taken->held());
}

// Whoever can open the file can lock it.
TEST_F(CheckpointWrite, OnlyWhoMayWriteTheLockMayOpenIt) {
  const auto mode_with = [this](mode_t mask) {
    std::filesystem::remove(std::filesystem::path(folder_) / ".lock");
    const mode_t before = ::umask(mask);
    const bool locked = DirectoryLock::acquire(folder_, "job").has_value();
    ::umask(before);
    struct stat info {};
    EXPECT_EQ(::stat((std::filesystem::path(folder_) / ".lock").c_str(), &info), 0);
    return locked ? info.st_mode & 0777 : 0;
  };
  EXPECT_EQ(mode_with(0022), 0600U);
  EXPECT_EQ(mode_with(0002), 0660U);
  EXPECT_EQ(mode_with(0000), 0666U);
  EXPECT_EQ(mode_with(0077), 0600U);
}

TEST_F(CheckpointWrite, TheSameJobWaitsForItsFormerProcess) {
  Holder holder(folder_, "job");
  auto late = DirectoryLock::acquire(folder_, "job", 30ms);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Errc::kTimeout);
  EXPECT_THAT(late.error().message, HasSubstr("this same job"));
  auto waiting = std::async(std::launch::async,
                            [this] { return DirectoryLock::acquire(folder_, "job", 60s); });
  EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);
  holder.kill();
  EXPECT_TRUE(waiting.get());
}

// Closing one would wait for the disk.
TEST_F(CheckpointWrite, AHolderHasNoDescriptorOfTheFile) {
  const auto lock = DirectoryLock::acquire(folder_, "job");
  ASSERT_TRUE(lock);
  EXPECT_GE(lock->fd(), 0);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // The iterator's own.
    const auto path = std::filesystem::read_symlink(entry.path(), closed);
    EXPECT_NE(path.filename(), ".lock") << path;
  }
  EXPECT_EQ(DirectoryLock::acquire(folder_, "other", 0ms).error().code, Errc::kExists);
}

// The worker is gone, its writer is not: the folder stays locked until it has finished.
TEST_F(CheckpointWrite, TheLockLivesAsLongAsTheWriter) {
  const SampleSave save = save_of(1, 2);
  const SnapshotMemory snapshots[] = {snapshot_of(share_of(save, 0)),
                                      snapshot_of(share_of(save, 1))};
  auto lock = DirectoryLock::acquire(folder_, "job");
  ASSERT_TRUE(lock);
  auto publisher = start(snapshots[0], lock->fd());
  lock->release();
  EXPECT_EQ(DirectoryLock::acquire(folder_, "other", 0ms).error().code, Errc::kExists);
  auto rank1 = start(snapshots[1]);
  EXPECT_EQ(rank1->wait(), 0);
  EXPECT_EQ(publisher->wait(), 0) << publisher->out();
  EXPECT_TRUE(DirectoryLock::acquire(folder_, "other", 0ms));
  EXPECT_EQ(newest_fault(save), "");
}

// Not the holder's, but that of its writer, which is killed.
TEST_F(CheckpointWrite, AKilledWriterGivesTheLockBack) {
  const SnapshotMemory memory = snapshot_of(share_of(save_of(1, 2), 0));
  auto lock = DirectoryLock::acquire(folder_, "job");
  ASSERT_TRUE(lock);
  auto publisher = start(memory, lock->fd());
  lock->release();
  EXPECT_EQ(DirectoryLock::acquire(folder_, "other", 0ms).error().code, Errc::kExists);
  publisher->kill(SIGKILL);
  EXPECT_EQ(publisher->wait(), 128 + SIGKILL);
  EXPECT_TRUE(DirectoryLock::acquire(folder_, "other", 0ms));
}

}  // namespace
}  // namespace ddp::checkpoint
