#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/base/exit_codes.h"
#include "tests/support/process.h"
#include "tests/support/snapshot_samples.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

// A worker for tests of checkpoints that survive their makers. In each step it hands a SampleSave,
// with the step as salt, to the agent. It begins after the newest valid checkpoint.
//
//   snapshot_worker HOW LAST_STEP BYTES_PER_SECOND ELEMENTS
//
// HOW: wait      ends when its last save is written
//      leave     ends as soon as it has handed over the last save
//      stay      hands over the last save and waits for a signal
//      die       in the first round all ranks kill themselves (SIGKILL) with the first save handed
//                over
//      request   waits until a checkpoint is requested, saves once, and ends
// The folder is $OUT/checkpoints. $SAVE_TIMEOUT_S: how long a save may take. The lines that it
// prints:
//   rank 0 begins at 3
//   rank 0 hands over 4
//   rank 0 has 4 written at PATH             (PATH: rank 0's only)
//   rank 0 has 4 refused because REASON
namespace {

using ddp::Buffer;
using ddp::DType;
using ddp::ReduceOp;
using ddp::test::SampleSave;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

struct Choice {
  std::string how;
  std::int64_t last = 0;
  std::uint64_t bytes_per_second = 0;
  std::int64_t elements = 0;
};

class SnapshotWorker {
 public:
  explicit SnapshotWorker(Choice choice)
      : choice_(std::move(choice)),
        folder_(variable("OUT") + "/checkpoints"),
        channel_(ddp::ControlChannel::from_environment({})),
        group_(ddp::ProcessGroup::from_environment()),
        rank_(group_->rank()) {}

  int run() {
    std::int64_t step = begin();
    say("begins at " + std::to_string(step));
    while (step < choice_.last) {
      if (choice_.how == "request") wait_for_request();
      step = agree(step + 1, ReduceOp::kMax);
      save(step);
      channel_->progress(step, 0, 0);
      if (choice_.how == "die" && group_->round() == 0) die_together();
      if (choice_.how == "request") break;
    }
    if (choice_.how == "stay") {
      for (;;) ::pause();
    }
    if (choice_.how == "leave") std::_Exit(0);
    wait_until_answered();
    group_->barrier()->wait();
    return 0;
  }

 private:
  void say(const std::string& what) const {
    std::printf("rank %d %s\n", static_cast<int>(rank_), what.c_str());
    std::fflush(stdout);
  }

  std::int64_t agree(std::int64_t value, ReduceOp op) {
    group_->all_reduce(Buffer{&value, 1, DType::kI64}, op)->wait();
    return value;
  }

  // The step of the newest valid checkpoint, from rank 0, which holds the folder's lock from then
  // on.
  std::int64_t begin() {
    std::int64_t step = 0;
    if (rank_ == 0) {
      ddp::checkpoint::Directory directory(ddp::checkpoint::posix_file_system(), folder_);
      must(ddp::checkpoint::make_directories(ddp::checkpoint::posix_file_system(), folder_));
      auto lock = ddp::checkpoint::DirectoryLock::acquire(folder_, variable("TORCHELASTIC_RUN_ID"));
      must(lock);
      lock_ = std::move(*lock);
      must(directory.prepare());
      auto found = ddp::test::open_newest_valid(directory);
      must(found);
      if (*found) step = (*found)->manifest.step;
    }
    // The processes of a round are no other's.
    nonce_ = std::to_string(agree(rank_ == 0 ? ::getpid() : 0, ReduceOp::kMax));
    return agree(step, ReduceOp::kMax);
  }

  void save(std::int64_t step) {
    // A publisher clears away what is not published yet, so one save is under way at a time.
    wait_until_answered();
    group_->barrier()->wait();
    const std::string id =
        "r" + std::to_string(group_->round()) + "-s" + std::to_string(step) + "-" + nonce_;
    const SampleSave sample{.directory = folder_,
                            .save_id = id,
                            .step = step,
                            .salt = static_cast<std::uint64_t>(step),
                            .world_size = group_->size(),
                            .elements = choice_.elements,
                            .retention = {2, 0},
                            .bytes_per_second = choice_.bytes_per_second,
                            .job_id = variable("TORCHELASTIC_RUN_ID")};
    ddp::test::SampleShare share = ddp::test::share_of(sample, rank_);
    if (const std::string seconds = variable("SAVE_TIMEOUT_S"); !seconds.empty())
      share.plan.timeout = std::chrono::seconds(std::stoi(seconds));
    const auto image = ddp::test::snapshot_of(share);
    {
      const std::lock_guard lock(mutex_);
      ++pending_;
    }
    const ddp::SnapshotSubmission submission{
        id, step, static_cast<std::int64_t>(image.bytes().size()), image.fd(), lock_.fd()};
    const bool taken = channel_->submit_snapshot(
        submission, [this, step](const ddp::SnapshotResult& result) { answer(step, result); });
    if (!taken) throw std::runtime_error("the agent takes no snapshots");
    say("hands over " + std::to_string(step));
  }

  void answer(std::int64_t step, const ddp::SnapshotResult& result) {
    say("has " + std::to_string(step) +
        (result.ok ? " written at " + result.path : " refused because " + result.error));
    const std::lock_guard lock(mutex_);
    --pending_;
    changed_.notify_all();
  }

  void wait_until_answered() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return pending_ == 0; });
  }

  // Nobody dies before all have handed over their part, and nobody says a word after it.
  [[noreturn]] void die_together() {
    const std::filesystem::path out = variable("OUT");
    std::ofstream(out / ("handed." + std::to_string(rank_))) << '\n';
    ddp::test::wait_until([&] {
      for (int rank = 0; rank < group_->size(); ++rank) {
        if (!std::filesystem::exists(out / ("handed." + std::to_string(rank)))) return false;
      }
      return true;
    });
    ::raise(SIGKILL);
    std::abort();
  }

  void wait_for_request() {
    say("waits for a request");
    while (agree(channel_->checkpoint_requests(), ReduceOp::kMax) == 0) {
      ::usleep(1'000);  // sleep: a step of training
    }
  }

  template <typename T>
  static void must(const T& result) {
    if (!result) throw std::runtime_error(result.error().message);
  }

  const Choice choice_;
  const std::string folder_;
  ddp::checkpoint::DirectoryLock lock_;  // Rank 0's.
  std::string nonce_;

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  int pending_ = 0;

  std::unique_ptr<ddp::ControlChannel> channel_;  // Ends before what its answers use.
  std::shared_ptr<ddp::ProcessGroup> group_;
  ddp::Rank rank_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return ddp::kExitUsage;
  try {
    return SnapshotWorker({argv[1], std::atoll(argv[2]), std::strtoull(argv[3], nullptr, 10),
                           std::atoll(argv[4])})
        .run();
  } catch (const ddp::CollectiveError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return ddp::kExitCollectiveFailed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return ddp::kExitInternal;
  }
}
