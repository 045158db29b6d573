// Checkpoints survive their makers: real ddp-run, agents, workers and writers are killed while they
// make checkpoints.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"
#include "common/config/snapshot_writer_mark.h"
#include "tests/process/ddp_run_fixture.h"
#include "tests/support/full_matrix.h"
#include "tests/support/snapshot_samples.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/file_system.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const char* const kWorker = SNAPSHOT_WORKER;
constexpr std::int64_t kElements = 64 * 1024;  // 256 KiB for each rank.
constexpr std::int64_t kSlow = 512 * 1024;     // Bytes per second: half a second for a share.
constexpr std::int64_t kVerySlow = 64 * 1024;  // Four, in which a test finds and kills somebody.
constexpr std::int64_t kEndless = 4 * 1024;    // A minute.

class CheckpointKill : public DdpRunTest {
 protected:
  // The programs in a folder of their own, where the publisher does not wait long for the part of a
  // rank that died.
  static void SetUpTestSuite() {
    programs_ = std::make_unique<TempDir>();
    for (const char* name : {"ddp-run", "ddp-agent"}) {
      std::filesystem::copy_file(bin(name), programs_->path() / name);
    }
    programs_->script("ddp-checkpoint",
                      "exec '" + std::filesystem::absolute(bin("ddp-checkpoint")).string() +
                          "' \"$@\" --part-timeout 5\n");
  }
  static void TearDownTestSuite() { programs_.reset(); }

  Process& job(const std::string& how, std::int64_t last, std::int64_t bytes_per_second,
               Arguments flags = {}, int nproc = 2) {
    Arguments command{(programs_->path() / "ddp-run").string(),
                      "--nproc-per-node",
                      std::to_string(nproc),
                      "--rdzv-id",
                      "job-" + mark_,
                      "--restart-on-start-failure"};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(command.end(), {kWorker, how, std::to_string(last),
                                   std::to_string(bytes_per_second), std::to_string(kElements)});
    const ProcessOptions options{
        .environment = {{"DDP_TEST_JOB", mark_}, {"TMPDIR", tmp_.path()}, {"OUT", folder_.path()}},
        .folder = folder_.path(),
        .inherited = {}};
    jobs_.push_back(std::make_unique<Process>(std::move(command), options));
    return *jobs_.back();
  }

  // Of this test's jobs. Those that write, not the shell that starts them: that has the script's
  // name too, and no environment for a moment while it becomes the writer.
  std::vector<pid_t> writers() const {
    std::vector<pid_t> found;
    for (const pid_t pid : alive("ddp-checkpoint")) {
      if (program_file(pid).filename() == "ddp-checkpoint" &&
          read_proc(pid, "environ").find(config::kSnapshotWriterMark) != std::string::npos) {
        found.push_back(pid);
      }
    }
    return found;
  }
  pid_t one(const std::string& name) const {
    const std::vector<pid_t> found = alive(name);
    return found.empty() ? 0 : found.front();
  }
  static void kill_one(pid_t pid, int number = SIGKILL) {
    if (pid > 1) ::kill(pid, number);
  }

  std::string checkpoints() const { return (folder_.path() / "checkpoints").string(); }

  // Of the newest valid checkpoint; 0: there is none. Everything that has a checkpoint's name must
  // be one, bit for bit.
  std::int64_t newest(int nproc = 2) const {
    using namespace checkpoint;
    Directory directory(posix_file_system(), checkpoints());
    ValidSearch search(directory);
    std::int64_t newest = 0;
    for (;;) {
      auto found = test::next_valid(directory, search);
      EXPECT_TRUE(found) << found.error().message;
      if (!found || !*found) break;
      const Manifest& manifest = (*found)->manifest;
      const SampleSave save{.directory = checkpoints(),
                            .save_id = manifest.save_id,
                            .step = manifest.step,
                            .salt = static_cast<std::uint64_t>(manifest.step),
                            .world_size = nproc,
                            .elements = kElements};
      EXPECT_EQ(fault_of(posix_file_system(), **found, save), "") << "step " << manifest.step;
      newest = std::max(newest, manifest.step);
    }
    EXPECT_THAT(search.skipped(), testing::IsEmpty());
    return newest;
  }

  // The last step that rank 0 was told to be durable.
  static std::int64_t last_told(const std::string& out) {
    std::int64_t last = 0;
    for (std::int64_t step = 1; step <= 9; ++step) {
      const std::string line = "rank 0 has " + std::to_string(step) + " written";
      if (out.find(line) != std::string::npos) last = step;
    }
    return last;
  }

  static inline std::unique_ptr<TempDir> programs_;
};

TEST_F(CheckpointKill, WhatWorkersHandOverIsWrittenAndTheyAreTold) {
  Process& run = job("wait", 3, 0);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(newest(), 3);
  for (const char* step : {"1", "2", "3"}) {
    EXPECT_THAT(run.out(),
                HasSubstr(std::string("rank 0 has ") + step + " written at " + checkpoints()));
    EXPECT_THAT(run.out(), HasSubstr(std::string("rank 1 has ") + step + " written at \n"));
  }
  EXPECT_EQ(run.err(), "");
}

TEST_F(CheckpointKill, WorkersKilledRightAfterTheHandOver) {
  Process& run = job("die", 1, kSlow, {"--max-restarts", "1"});
  EXPECT_EQ(run.wait(), 0) << run.err();
  // The next incarnation has waited for what the first one had handed over.
  EXPECT_THAT(run.out(), HasSubstr("rank 0 begins at 0\n"));
  EXPECT_THAT(run.out(), HasSubstr("rank 0 begins at 1\n"));
  EXPECT_THAT(run.err(),
              HasSubstr("the checkpoint of step 1 was finished after its worker had ended: " +
                        checkpoints()));
  EXPECT_THAT(run.err(), Not(HasSubstr("starting it again"))) << "the round's end is not theirs";
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointKill, AWriterThatIsKilledIsStartedAgain) {
  Process& run = job("wait", 1, kVerySlow);
  ASSERT_TRUE(wait_until([this] { return writers().size() == 2; }));
  for (const pid_t pid : writers()) kill_one(pid);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_THAT(run.err(),
              HasSubstr("the process that writes the checkpoint of step 1 for local rank "
                        "0 was ended by SIGKILL; starting it again"));
  EXPECT_THAT(run.out(), HasSubstr("rank 0 has 1 written at " + checkpoints()));
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointKill, AJobThatEndsWaitsForItsWriters) {
  Process& run = job("leave", 1, kSlow);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(newest(), 1) << "before ddp-run has ended";
}

TEST_F(CheckpointKill, ASignalToTheJobDoesNotLoseWhatIsBeingWritten) {
  Process& run = job("stay", 1, kVerySlow);
  ASSERT_TRUE(wait_until([this] { return writers().size() == 2; }));
  run.kill(SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM) << run.err();
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointKill, ASecondCtrlCGivesUpWhatIsBeingWritten) {
  Process& run = job("stay", 1, kEndless);
  ASSERT_TRUE(wait_until([this] { return writers().size() == 2; }));
  run.kill(SIGINT);
  ASSERT_TRUE(run.complains("waiting for 2 parts of checkpoints to be written"));
  run.kill(SIGINT);
  EXPECT_EQ(run.wait(30s), 128 + SIGINT) << run.err();
  EXPECT_TRUE(writers().empty());
  EXPECT_EQ(newest(), 0);
}

TEST_F(CheckpointKill, TheWritersOfAKilledAgentFinishAndTheNextWorkersWaitForThem) {
  Process& run = job("wait", 1, kVerySlow, {"--max-restarts", "1"});
  ASSERT_TRUE(wait_until([this] { return writers().size() == 2; }));
  kill_one(one("ddp-agent"));
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_THAT(run.out(), HasSubstr("rank 0 begins at 1\n"));
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointKill, DdpRunWaitsForTheWritersOfAKilledAgent) {
  Process& run = job("wait", 1, kVerySlow);
  ASSERT_TRUE(wait_until([this] { return writers().size() == 2; }));
  kill_one(one("ddp-agent"));
  EXPECT_EQ(run.wait(), kExitNodeLost) << run.err();
  // What the publisher leaves to a process of its own is no part of the checkpoint.
  EXPECT_TRUE(wait_until([this] { return writers().empty(); }));
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointKill, TheWritersOfAKilledDdpRunFinish) {
  Process& run = job("stay", 1, kVerySlow);
  ASSERT_TRUE(wait_until([this] { return writers().size() == 2; }));
  run.kill(SIGKILL);
  ASSERT_TRUE(wait_until([this] { return alive("ddp-agent").empty(); }));
  EXPECT_TRUE(is_gone());
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointKill, ARequestReachesTheWorkersThatUnderstandIt) {
  Process& run = job("request", 5, 0);
  ASSERT_TRUE(run.prints("rank 0 waits for a request") && run.prints("rank 1 waits for a request"));
  run.kill(SIGUSR1);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(newest(), 1);
}

TEST_F(CheckpointKill, ARequestDoesNotEndAnybodyElse) {
  Process& run = start({"--nproc-per-node", "2", "sh", "-c",
                        "echo up; until [ -e go ]; do sleep 0.01; done; echo fine"});
  ASSERT_TRUE(run.prints("up\n"));
  for (int i = 0; i < 3; ++i) run.kill(SIGUSR1);
  folder_.write("go", "");
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_THAT(run.out(), HasSubstr("fine\n"));
}

// Whoever is killed and whenever: no checkpoint is damaged, none that was there is lost, and the
// job, or the next one, comes to its end.
TEST_F(CheckpointKill, AtRandomMoments) {
  const char* given = std::getenv("DDP_TEST_SEED");
  const auto seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                                     : std::random_device()();
  std::cout << "seed " << seed << " (DDP_TEST_SEED)" << std::endl;
  std::mt19937 random(seed);
  const int moments = full_matrix() ? 200 : 12;
  for (int i = 0; i < moments; ++i) {
    SCOPED_TRACE("moment " + std::to_string(i));
    std::filesystem::remove_all(checkpoints());
    constexpr std::int64_t kLast = 3;
    const Arguments flags{"--max-restarts", "5", "--max-no-progress", "10"};
    Process* run = &job("wait", kLast, 4 * 1024 * 1024, flags);
    const auto victim = static_cast<int>(random() % 4);
    const int saved_before = static_cast<int>(random() % kLast);
    ASSERT_TRUE(run->prints("rank 0 hands over " + std::to_string(saved_before + 1) + "\n"));
    const std::chrono::microseconds moment(random() % 80'000);
    std::this_thread::sleep_for(moment);  // sleep: a random moment of the save
    const std::int64_t before = last_told(run->out());
    if (victim == 0) kill_one(one("snapshot_worker"));
    // Which may have ended.
    const std::vector<pid_t> writing = writers();
    if (victim == 1 && !writing.empty()) kill_one(writing.back());
    if (victim == 2) kill_one(one("ddp-agent"));
    if (victim == 3) {
      run->kill(SIGKILL);
      for (const pid_t pid : alive()) kill_one(pid);
      ASSERT_TRUE(is_gone());
      // Nobody was left to remove it.
      for (const auto& entry : std::filesystem::directory_iterator(tmp_.path()))
        std::filesystem::remove_all(entry);
      EXPECT_GE(newest(), before);
      run = &job("wait", kLast, 0, flags);
    }
    EXPECT_EQ(run->wait(), 0) << "victim " << victim << "\n" << run->err();
    EXPECT_EQ(newest(), kLast) << "victim " << victim;
    EXPECT_TRUE(is_gone());
    if (HasFailure()) break;
    jobs_.clear();
  }
}

}  // namespace
}  // namespace ddp::test
