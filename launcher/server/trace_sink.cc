#include "launcher/server/trace_sink.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

#include "common/process/parked_threads.h"
#include "common/process/write_file.h"

namespace ddp::server {
namespace {

// How long the end of a job waits for a disk.
constexpr std::chrono::seconds kDiskPatience{5};

}  // namespace

TraceStream::TraceStream(std::shared_ptr<net::ByteStream> stream) : stream_(std::move(stream)) {
  stream_->limit_queue(kMostQueued);
  stream_->send(kHead);
}

void TraceStream::finish() {
  stream_->send(kEnd);
  stream_->close_after_writes();
}

struct TraceFile::Disk {
  void run(const std::string& path);

  std::mutex mutex;  // Guards all of it.
  std::condition_variable changed;
  std::string queued{kHead};
  bool is_last = false;     // Nothing is added to `queued` any more.
  bool is_written = false;  // The thread has finished.
  bool left_out = false;
  std::string error;
};

void TraceFile::Disk::run(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  std::string failure = fd ? "" : std::generic_category().message(errno);
  std::unique_lock lock(mutex);
  while (failure.empty()) {
    changed.wait(lock, [this] { return is_last || !queued.empty(); });
    if (queued.empty()) break;
    const std::string bytes = std::exchange(queued, {});
    lock.unlock();
    std::string_view rest = bytes;
    if (const int failed = write_all(fd.get(), rest); failed != 0)
      failure = std::generic_category().message(failed);
    lock.lock();
  }
  lock.unlock();
  fd.reset();  // On NFS this waits, too.
  lock.lock();
  error = std::move(failure);
  is_written = true;
  lock.unlock();
  changed.notify_all();
}

TraceFile::TraceFile(std::function<std::string()> path, std::size_t steps, OnEnd on_end)
    : ask_path_(std::move(path)),
      count_(steps),
      on_end_(std::move(on_end)),
      disk_(std::make_shared<Disk>()) {}

TraceFile::~TraceFile() {
  if (!thread_.joinable()) return;
  bool is_written = false;
  {
    const std::lock_guard lock(disk_->mutex);
    disk_->is_last = true;
    is_written = disk_->is_written;
  }
  disk_->changed.notify_all();
  if (is_written) {
    thread_.join();
  } else {
    park_thread(std::move(thread_));
  }
}

void TraceFile::write(std::string_view events) {
  if (has_ended_) return;
  {
    const std::lock_guard lock(disk_->mutex);
    if (disk_->is_last) return;
    const bool fits = disk_->queued.size() + events.size() <= kMostQueued;
    if (fits) disk_->queued += events;
    disk_->left_out = disk_->left_out || !fits;
  }
  if (!thread_.joinable()) {
    path_ = ask_path_();
    thread_ = std::thread([disk = disk_, path = path_] { disk->run(path); });
  }
  disk_->changed.notify_all();
  count_.take(events);
  if (count_.is_reached()) add_last();
}

void TraceFile::add_last() {
  {
    const std::lock_guard lock(disk_->mutex);
    if (std::exchange(disk_->is_last, true)) return;
    disk_->queued += kEnd;
  }
  disk_->changed.notify_all();
}

bool TraceFile::is_open() {
  if (has_ended_) return false;
  bool is_written = false;
  {
    const std::lock_guard lock(disk_->mutex);
    is_written = disk_->is_written;
  }
  if (is_written) end();
  return !is_written;
}

void TraceFile::finish() {
  if (has_ended_) return;
  if (thread_.joinable()) {
    add_last();
    std::unique_lock lock(disk_->mutex);
    disk_->changed.wait_for(lock, kDiskPatience, [this] { return disk_->is_written; });
  }
  end();
}

void TraceFile::end() {
  if (std::exchange(has_ended_, true)) return;
  End end{.path = path_};
  {
    const std::lock_guard lock(disk_->mutex);
    end.error = disk_->error;
    if (end.error.empty() && disk_->left_out)
      end.error = "the disk was too slow; events are missing";
    if (!path_.empty() && !disk_->is_written) end.error = "the disk does not take it";
  }
  if (on_end_) on_end_(end);
}

}  // namespace ddp::server
