#include "worker/ddp/state/checkpoint_writer.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "worker/checkpoint/directory_lock.h"
#include "worker/checkpoint/file_system.h"
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
                                       std::span<const std::byte> image) {
  try {
    auto snapshot = checkpoint::open_snapshot(image);
    if (!snapshot) return snapshot.error();
    return checkpoint::write_snapshot(files, *snapshot);
  } catch (const std::exception& error) {
    return make_error(Errc::kIo, "writing failed: {}", error.what());
  }
}

}  // namespace

class CheckpointWriter::Impl {
 public:
  // What the thread that writes, or the channel's, shares with the training thread; lives as long
  // as the last of them needs it.
  struct Ends {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<FinishedSave> finished;

    void add(FinishedSave save) {
      {
        const std::lock_guard lock(mutex);
        finished.push_back(std::move(save));
      }
      changed.notify_all();
    }
  };

  explicit Impl(ControlChannel* channel) : channel_(channel) {}
  ~Impl() {
    if (thread_.joinable()) thread_.join();
  }

  void write(const std::string& id, std::int64_t step, checkpoint::FileSystem& files) {
    ++under_way_;
    if (hand_to_agent(id, step, files)) return;
    if (thread_.joinable()) thread_.join();
    // The thread has its own copy of the descriptor: the lock may be given up meanwhile.
    thread_ = std::thread(
        [ends = ends_, &files, id, step, image = image_.bytes(), lock = UniqueFd(copy_of_lock())] {
          lower_priority();
          ends->add({id, step, write_here(files, image)});
        });
  }

  // A writer that has not reported its end may still read the memory.
  void keep_memory_if_free(const FinishedSave& save) {
    if (!save.result) image_ = {};
  }

  // The agent must not take this process for hung.
  void still_waits() {
    if (channel_ != nullptr) channel_->still_waits();
  }

  ControlChannel* channel_;
  std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  checkpoint::SnapshotMemory image_;
  int under_way_ = 0;
  std::string locked_;  // The folder.
  checkpoint::DirectoryLock lock_;

 private:
  bool hand_to_agent(const std::string& id, std::int64_t step, checkpoint::FileSystem& files) {
    // Another process knows of the real file system alone.
    if (channel_ == nullptr || &files != &checkpoint::posix_file_system()) return false;
    if (channel_->snapshot_limit() < 1) return false;
    SnapshotSubmission submission;
    submission.id = id;
    submission.step = step;
    submission.bytes = static_cast<std::int64_t>(image_.bytes().size());
    submission.memfd = image_.fd();
    submission.lock_fd = lock_.fd();
    return channel_->submit_snapshot(submission,
                                     [ends = ends_, id, step](const SnapshotResult& result) {
                                       ends->add({id, step, written_of(result)});
                                     });
  }

  int copy_of_lock() const { return lock_.held() ? ::dup(lock_.fd()) : -1; }

  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(ControlChannel* channel)
    : impl_(std::make_unique<Impl>(channel)) {}

CheckpointWriter::~CheckpointWriter() = default;

bool CheckpointWriter::busy() const { return impl_->under_way_ > 0; }

void CheckpointWriter::wait_for(std::chrono::milliseconds limit) {
  impl_->still_waits();
  Impl::Ends& ends = *impl_->ends_;
  std::unique_lock lock(ends.mutex);
  ends.changed.wait_for(lock, limit, [&ends] { return !ends.finished.empty(); });
}

std::vector<FinishedSave> CheckpointWriter::take_finished() {
  std::vector<FinishedSave> finished;
  {
    const std::lock_guard lock(impl_->ends_->mutex);
    finished.swap(impl_->ends_->finished);
  }
  impl_->under_way_ -= static_cast<int>(finished.size());
  for (const FinishedSave& save : finished) impl_->keep_memory_if_free(save);
  return finished;
}

Result<std::span<std::byte>> CheckpointWriter::reserve(std::uint64_t bytes, std::uint64_t limit) {
  checkpoint::SnapshotMemory& image = impl_->image_;
  if (limit != 0 && bytes > limit) {
    return make_error(Errc::kIo, "the snapshot takes {} bytes, the limit is {}", bytes, limit);
  }
  if (image.writable().size() >= bytes) return image.writable();
  image = {};
  // The description of a value may be longer the next time.
  const std::uint64_t wanted = bytes + bytes / 64 + (std::uint64_t{64} << 10);
  if (auto enough = check_host_memory(wanted); !enough) return enough.error();
  auto made = checkpoint::SnapshotMemory::create(wanted);
  if (!made) return made.error();
  image = std::move(*made);
  return image.writable();
}

void CheckpointWriter::write(const std::string& id, std::int64_t step,
                             checkpoint::FileSystem& files) {
  impl_->write(id, step, files);
}

Result<std::string> CheckpointWriter::lock(const std::string& directory, const std::string& job_id,
                                           std::chrono::milliseconds wait) {
  if (holds(directory)) return std::string();
  unlock();
  impl_->still_waits();
  auto lock = checkpoint::DirectoryLock::acquire(directory, job_id, wait);
  if (!lock) return lock.error();
  impl_->lock_ = std::move(*lock);
  impl_->locked_ = directory;
  return impl_->lock_.warning();
}

bool CheckpointWriter::holds(const std::string& directory) const {
  return !impl_->locked_.empty() && impl_->locked_ == directory;
}

void CheckpointWriter::unlock() {
  impl_->lock_.release();
  impl_->locked_.clear();
}

}  // namespace ddp
