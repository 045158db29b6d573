#include "worker/ddp/state/checkpoint_writer.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/unique_fd.h"
#include "common/process/parked_threads.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/save_folder.h"
#include "worker/ddp/state/checkpoint_writer_impl.h"
#include "worker/ddp/tensors/host_memory.h"
#include "worker/runtime/control_channel.h"

namespace ddp {
namespace {

// Training has priority. On Linux both calls affect the calling thread only; if they are refused,
// it writes with normal priority.
void lower_priority() {
  constexpr int kOfProcess = 1;  // <linux/ioprio.h> is not installed everywhere.
  constexpr int kBestEffortLowest = (2 << 13) | 7;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 15);
  ::syscall(SYS_ioprio_set, kOfProcess, 0, kBestEffortLowest);
}

Result<checkpoint::Written> written_of(const SnapshotResult& result) {
  if (!result.ok) return make_error(Errc::kIo, "{}", result.error);
  checkpoint::Written written;
  written.path = result.path;
  written.bytes = static_cast<std::uint64_t>(result.bytes);
  written.seconds = result.seconds;
  written.warnings = result.warnings;
  return written;
}

}  // namespace

// A disk may never answer. Then the save is reported as failed all the same, and the thread is left
// alone with all that it uses.
struct CheckpointWriter::Impl::Save {
  // Tells people when a call has stood for 10 s, 20 s, 40 s, ...
  class SlowNotices {
   public:
    void take(std::int64_t of_step, const checkpoint::StandingCall& call) {
      constexpr double kFirst = 10;
      if (call.seconds < told_at_) told_at_ = 0;  // Another call.
      if (call.seconds < std::max(kFirst, 2 * told_at_)) return;
      told_at_ = call.seconds;
      const std::string line = fmt::format("checkpoint of step {}: {}\n", of_step, call.text());
      std::fputs(line.c_str(), stderr);
    }

   private:
    double told_at_ = 0;
  };

  std::string id;
  std::int64_t step = -1;
  std::shared_ptr<checkpoint::SnapshotMemory> memory;
  std::shared_ptr<Ends> ends;
  UniqueFd lock;
  enum State { kWriting, kGivenUp, kEnded };
  std::atomic<State> state = kWriting;
  std::atomic<bool> told = false;  // How it ended.
  std::atomic<bool> round_lasts = true;
  SlowNotices notices;

  void tell(Result<checkpoint::Written> result) {
    if (!told.exchange(true)) ends->add({id, step, std::move(result)});
  }
  void run(checkpoint::FileSystem& files) {
    write(files);
    state = kEnded;
    state.notify_all();
  }
  void write(checkpoint::FileSystem& files) {
    try {
      auto snapshot = checkpoint::open_snapshot(memory->bytes());
      if (!snapshot) return tell(snapshot.error());
      checkpoint::WriterOptions options;
      options.cancelled = [this] { return told.load(); };
      options.round_lasts = [this] { return round_lasts.load(); };
      options.on_standing = [this,
                             limit = snapshot->plan.timeout](const checkpoint::StandingCall& call) {
        notices.take(step, call);
        const double most = std::chrono::duration<double>(limit).count();
        if (call.seconds < most) return;
        state = kGivenUp;
        state.notify_all();
        tell(make_error(Errc::kTimeout,
                        "{}, longer than a save may wait for the disk ({:.3g} s): {}", call.text(),
                        most, call.path));
      };
      tell(checkpoint::write_snapshot(files, *snapshot, options));
    } catch (const std::exception& error) {
      tell(make_error(Errc::kIo, "writing failed: {}", error.what()));
    }
  }
};

void CheckpointWriter::Impl::begin_round() {
  if (save_) save_->round_lasts = false;
}

CheckpointWriter::Impl::~Impl() {
  begin_round();
  end_thread();
}

// Waits for the thread, unless its save was given up.
void CheckpointWriter::Impl::end_thread() {
  if (!thread_.joinable()) return;
  save_->state.wait(Save::kWriting);
  if (save_->state == Save::kEnded) {
    thread_.join();
  } else {
    park_thread(std::move(thread_));
  }
}

std::string CheckpointWriter::Impl::left_behind() const {
  if (!save_ || save_->state != Save::kGivenUp) return "";
  return fmt::format("the disk still holds the writer of step {}, which was given up", save_->step);
}

void CheckpointWriter::Impl::write_by_thread(const std::string& id, std::int64_t step,
                                             checkpoint::FileSystem& files) {
  end_thread();
  save_ = std::make_shared<Save>();
  save_->id = id;
  save_->step = step;
  save_->memory = memory_;
  save_->ends = ends_;
  // Its own copy of the descriptor: the lock may be given up meanwhile.
  save_->lock = UniqueFd(lock_.held() ? ::dup(lock_.fd()) : -1);
  thread_ = std::thread([save = save_, &files] {
    lower_priority();
    save->run(files);
  });
}

CheckpointWriter::CheckpointWriter(ControlChannel* channel)
    : impl_(std::make_unique<Impl>(channel)) {}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::Impl::Ends::add(FinishedSave save) {
  {
    const std::lock_guard lock(mutex);
    finished.push_back(std::move(save));
  }
  changed.notify_all();
}

// The agent must not take this process for hung.
void CheckpointWriter::Impl::still_waits() {
  if (channel_ != nullptr) channel_->still_waits();
}

void CheckpointWriter::Impl::wait_for(std::chrono::milliseconds limit) {
  still_waits();
  std::unique_lock lock(ends_->mutex);
  ends_->changed.wait_for(lock, limit, [this] { return !ends_->finished.empty(); });
}

std::vector<FinishedSave> CheckpointWriter::Impl::take_finished() {
  std::vector<FinishedSave> finished;
  {
    const std::lock_guard lock(ends_->mutex);
    finished.swap(ends_->finished);
  }
  under_way_ -= static_cast<int>(finished.size());
  for (const FinishedSave& save : finished) {
    // A writer that has not reported its end may still read the memory.
    if (!save.result) drop_memory();
  }
  return finished;
}

Result<std::span<std::byte>> CheckpointWriter::Impl::reserve(std::uint64_t bytes,
                                                             std::uint64_t limit) {
  if (limit != 0 && bytes > limit) {
    return make_error(Errc::kIo, "the snapshot takes {} bytes, the limit is {}", bytes, limit);
  }
  if (memory_ && memory_->writable().size() >= bytes) return memory_->writable();
  drop_memory();
  // The description of a value may be longer the next time.
  const std::uint64_t wanted = bytes + bytes / 64 + (std::uint64_t{64} << 10);
  if (auto enough = check_host_memory(wanted); !enough) return enough.error();
  auto made = checkpoint::SnapshotMemory::create(wanted);
  if (!made) return made.error();
  memory_ = std::make_shared<checkpoint::SnapshotMemory>(std::move(*made));
  pinned_.pin(memory_->writable());
  return memory_->writable();
}

void CheckpointWriter::Impl::drop_memory() {
  pinned_.unpin();
  memory_.reset();
}

void CheckpointWriter::Impl::write(const std::string& id, std::int64_t step,
                                   checkpoint::FileSystem& files) {
  if (!hand_to_agent(id, step, files)) write_by_thread(id, step, files);
  ++under_way_;  // If no thread can start, nobody would ever count it down.
}

void CheckpointWriter::Impl::abandon(checkpoint::SnapshotPlan plan, std::string reason,
                                     checkpoint::FileSystem& files) {
  const auto tell = [plan = std::move(plan), reason = std::move(reason), &files] {
    checkpoint::SaveFolder(files, plan).abandon(reason);
  };
  try {
    park_thread(std::thread(tell));  // The disk may never answer.
  } catch (const std::system_error&) {
    tell();
  }
}

bool CheckpointWriter::Impl::hand_to_agent(const std::string& id, std::int64_t step,
                                           checkpoint::FileSystem& files) {
  // Another process knows of the real file system alone.
  if (channel_ == nullptr || &files != &checkpoint::posix_file_system()) return false;
  if (channel_->snapshot_limit() < 1) return false;
  SnapshotSubmission submission;
  submission.id = id;
  submission.step = step;
  submission.bytes = static_cast<std::int64_t>(memory_->bytes().size());
  submission.memfd = memory_->fd();
  submission.lock_fd = lock_.fd();
  return channel_->submit_snapshot(submission,
                                   [ends = ends_, id, step](const SnapshotResult& result) {
                                     ends->add({id, step, written_of(result)});
                                   });
}

Result<std::string> CheckpointWriter::Impl::lock(const std::string& directory,
                                                 const std::string& job_id,
                                                 std::chrono::milliseconds wait) {
  if (holds(directory)) return std::string();
  unlock();
  still_waits();
  auto lock = checkpoint::DirectoryLock::acquire(directory, job_id, wait);
  if (!lock) return lock.error();
  lock_ = std::move(*lock);
  locked_ = directory;
  return lock_.warning();
}

bool CheckpointWriter::Impl::holds(const std::string& directory) const {
  return !locked_.empty() && locked_ == directory;
}

void CheckpointWriter::Impl::unlock() {
  lock_.release();
  locked_.clear();
}

}  // namespace ddp
