#include "worker/ddp/state/checkpoint_writer.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "common/base/unique_fd.h"
#include "worker/checkpoint/file_system.h"
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

Result<checkpoint::Written> write_here(checkpoint::FileSystem& files,
                                       std::span<const std::byte> memory) {
  try {
    auto snapshot = checkpoint::open_snapshot(memory);
    if (!snapshot) return snapshot.error();
    return checkpoint::write_snapshot(files, *snapshot);
  } catch (const std::exception& error) {
    return make_error(Errc::kIo, "writing failed: {}", error.what());
  }
}

}  // namespace

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
  if (memory_.writable().size() >= bytes) return memory_.writable();
  drop_memory();
  // The description of a value may be longer the next time.
  const std::uint64_t wanted = bytes + bytes / 64 + (std::uint64_t{64} << 10);
  if (auto enough = check_host_memory(wanted); !enough) return enough.error();
  auto made = checkpoint::SnapshotMemory::create(wanted);
  if (!made) return made.error();
  memory_ = std::move(*made);
  pinned_.pin(memory_.writable());
  return memory_.writable();
}

void CheckpointWriter::Impl::drop_memory() {
  pinned_.unpin();
  memory_ = {};
}

void CheckpointWriter::Impl::write(const std::string& id, std::int64_t step,
                                   checkpoint::FileSystem& files) {
  ++under_way_;
  if (hand_to_agent(id, step, files)) return;
  if (thread_.joinable()) thread_.join();
  // The thread has its own copy of the descriptor: the lock may be given up meanwhile.
  UniqueFd lock(lock_.held() ? ::dup(lock_.fd()) : -1);
  thread_ = std::thread(
      [ends = ends_, &files, id, step, memory = memory_.bytes(), lock = std::move(lock)] {
        lower_priority();
        ends->add({id, step, write_here(files, memory)});
      });
}

bool CheckpointWriter::Impl::hand_to_agent(const std::string& id, std::int64_t step,
                                           checkpoint::FileSystem& files) {
  // Another process knows of the real file system alone.
  if (channel_ == nullptr || &files != &checkpoint::posix_file_system()) return false;
  if (channel_->snapshot_limit() < 1) return false;
  SnapshotSubmission submission;
  submission.id = id;
  submission.step = step;
  submission.bytes = static_cast<std::int64_t>(memory_.bytes().size());
  submission.memfd = memory_.fd();
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
