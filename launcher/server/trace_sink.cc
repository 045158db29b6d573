#include "launcher/server/trace_sink.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

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

TraceFile::TraceFile(std::function<std::string()> path, std::size_t steps, OnEnd on_end)
    : ask_path_(std::move(path)), count_(steps), on_end_(std::move(on_end)), queued_(kHead) {}

TraceFile::~TraceFile() {
  {
    const std::lock_guard lock(mutex_);
    is_last_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TraceFile::write(std::string_view events) {
  if (has_ended_) return;
  {
    const std::lock_guard lock(mutex_);
    left_out_ = left_out_ || queued_.size() + events.size() > kMostQueued;
    if (queued_.size() + events.size() <= kMostQueued) queued_ += events;
  }
  if (!thread_.joinable()) {
    path_ = ask_path_();
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
  count_.take(events);
  if (count_.is_reached()) finish();
}

void TraceFile::run() {
  const UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  std::string error = fd ? "" : std::generic_category().message(errno);
  std::unique_lock lock(mutex_);
  while (error.empty()) {
    changed_.wait(lock, [this] { return is_last_ || !queued_.empty(); });
    if (queued_.empty()) break;
    const std::string bytes = std::exchange(queued_, {});
    lock.unlock();
    std::string_view rest = bytes;
    if (const int failed = write_all(fd.get(), rest); failed != 0)
      error = std::generic_category().message(failed);
    lock.lock();
  }
  error_ = std::move(error);
  is_written_ = true;
  lock.unlock();
  changed_.notify_all();
}

bool TraceFile::is_open() {
  if (has_ended_) return false;
  bool is_written = false;
  {
    const std::lock_guard lock(mutex_);
    is_written = is_written_;
  }
  if (is_written) end();
  return !is_written;
}

void TraceFile::finish() {
  if (has_ended_) return;
  if (thread_.joinable()) {
    std::unique_lock lock(mutex_);
    queued_ += kEnd;
    is_last_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kDiskPatience, [this] { return is_written_; });
  }
  end();
}

void TraceFile::end() {
  if (std::exchange(has_ended_, true)) return;
  End end{.path = path_};
  {
    const std::lock_guard lock(mutex_);
    end.error = error_;
    if (end.error.empty() && left_out_) end.error = "the disk was too slow; events are missing";
    if (!path_.empty() && !is_written_) end.error = "the disk does not take it";
  }
  if (on_end_) on_end_(end);
}

}  // namespace ddp::server
