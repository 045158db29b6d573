#include "agent/process/file_writer.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <asio/post.hpp>

#include "agent/process/spawn_program.h"
#include "common/base/check.h"
#include "common/net/timer.h"
#include "common/process/all_signals_blocked.h"
#include "common/process/parked_threads.h"
#include "common/process/write_file.h"

namespace ddp::agent {
namespace {

// How long a disk may stand still before the end no longer waits for it.
constexpr Duration kPatienceAtEnd{1'000};
// To wake the thread costs as much as to write some ten kilobytes. So it looks again by itself
// after this long, unless much has come before.
constexpr std::chrono::milliseconds kLook{1};
constexpr std::size_t kMuch = FileWriter::kQueueLimitBytes / 4;
// New memory costs a page fault every 4 KiB, which is more than the copy into it. So that of large
// pieces is used again: one is being written while another one comes.
constexpr std::size_t kSpares = 2;
constexpr std::size_t kWorthKeeping = 64 * 1024;
constexpr int kLooksInLimit = 10;

}  // namespace

struct FileWriter::File {
  OnFailure on_failure;  // For the thread of `io` alone.
  // The rest needs the mutex.
  Opener opener;  // Null: it is open.
  UniqueFd fd;
  std::string waiting;
  std::optional<Failure> failure;
  bool is_told = false;  // That it has failed. Nothing waits any more.
  bool is_queued = false;
  bool is_closed = false;
};

// What both threads share. The writing thread may outlive the FileWriter, in a call that does not
// return.
struct FileWriter::State : std::enable_shared_from_this<State> {
  State(asio::io_context& loop, Events handlers)
      : io(loop), events(std::move(handlers)), timer(std::in_place, loop) {}

  void begin_thread();
  void queue(const std::shared_ptr<File>& file);
  void run();
  void open(std::unique_lock<std::mutex>& lock, const std::shared_ptr<File>& file);
  void write(std::unique_lock<std::mutex>& lock, const std::shared_ptr<File>& file);
  void fail(const std::shared_ptr<File>& file, Failure failure);
  void close(std::unique_lock<std::mutex>& lock, const std::shared_ptr<File>& file);
  void tell_failure(const std::shared_ptr<File>& file);
  void tell_not_full();
  void watch();
  void look();

  asio::io_context& io;
  // For the thread of `io` alone. What callbacks hold must end there, so files do, too.
  Events events;
  std::optional<net::Timer> timer;
  bool is_watched = false;
  Duration told{0};  // How long nothing had been written when that was told last.
  std::thread thread;
  std::vector<std::shared_ptr<File>> files;
  std::vector<std::function<void()>> not_full;

  std::mutex mutex;  // Guards what follows.
  std::condition_variable work;
  std::condition_variable progress;         // Something has been written, or the thread is over.
  std::deque<std::shared_ptr<File>> ready;  // To be opened, written to or closed.
  std::vector<std::string> spares;          // Empty, with room.
  std::size_t queued_bytes = 0;
  int unopened = 0;
  int untold_failures = 0;
  TimePoint last_taken = Clock::now();
  bool somebody_waits = false;  // For not_full.
  bool is_idle = false;         // The thread waits for work.
  bool ends = false;            // Nothing is posted any more.
  bool is_over = false;         // The thread is about to end.
};

void FileWriter::State::begin_thread() {
  if (thread.joinable()) return;
  const AllSignalsBlocked blocked;  // The main thread gets them.
  thread = std::thread([self = shared_from_this()] { self->run(); });
}

void FileWriter::State::queue(const std::shared_ptr<File>& file) {
  if (std::exchange(file->is_queued, true)) return;
  ready.push_back(file);
  if (is_idle) work.notify_one();
}

void FileWriter::State::run() {
  bool has_looked = true;
  std::unique_lock lock(mutex);
  for (;;) {
    while (!ready.empty()) {
      const std::shared_ptr<File> file = std::move(ready.front());
      ready.pop_front();
      file->is_queued = false;
      open(lock, file);
      write(lock, file);
      if (file->is_closed) close(lock, file);
      has_looked = false;
    }
    if (ends) break;
    if (!std::exchange(has_looked, true)) {
      work.wait_for(lock, kLook);
      continue;
    }
    is_idle = true;
    work.wait(lock);
    is_idle = false;
  }
  is_over = true;
  progress.notify_all();
}

void FileWriter::State::open(std::unique_lock<std::mutex>& lock,
                             const std::shared_ptr<File>& file) {
  const Opener opener = std::exchange(file->opener, nullptr);
  if (!opener) return;
  lock.unlock();
  Result<UniqueFd> fd = opener();
  if (fd && *fd) fd = keep_back(std::move(*fd));
  lock.lock();
  --unopened;
  last_taken = Clock::now();
  if (fd) {
    file->fd = std::move(*fd);
  } else {
    fail(file, {.error = 0, .why = fd.error().message, .rest = {}});
    tell_not_full();
  }
}

void FileWriter::State::write(std::unique_lock<std::mutex>& lock,
                              const std::shared_ptr<File>& file) {
  if (file->failure || file->waiting.empty()) return;
  std::string bytes = std::exchange(file->waiting, {});
  const int fd = file->fd.get();
  lock.unlock();
  std::string_view rest = bytes;
  const int error = write_all(fd, rest);
  lock.lock();
  queued_bytes -= bytes.size();
  last_taken = Clock::now();
  progress.notify_all();
  if (error == 0 && spares.size() < kSpares && bytes.capacity() >= kWorthKeeping) {
    bytes.clear();
    spares.push_back(std::move(bytes));
  }
  if (error != 0) fail(file, {error, std::generic_category().message(error), std::string(rest)});
  tell_not_full();
}

void FileWriter::State::fail(const std::shared_ptr<File>& file, Failure failure) {
  file->failure = std::move(failure);
  queued_bytes -= file->waiting.size();
  ++untold_failures;
  if (!ends) asio::post(io, [self = shared_from_this(), file] { self->tell_failure(file); });
}

void FileWriter::State::tell_not_full() {
  if (ends || queued_bytes > kQueueLimitBytes || !std::exchange(somebody_waits, false)) return;
  asio::post(io, [self = shared_from_this()] {
    for (const auto& callback : std::exchange(self->not_full, {})) callback();
  });
}

void FileWriter::State::close(std::unique_lock<std::mutex>& lock,
                              const std::shared_ptr<File>& file) {
  if (file->is_queued) return;  // Something was written to it meanwhile.
  UniqueFd fd = std::move(file->fd);
  lock.unlock();
  fd.reset();  // On NFS this waits, too.
  lock.lock();
  if (ends) return;
  asio::post(io, [self = shared_from_this(), file] {
    file->on_failure = {};
    std::erase(self->files, file);
  });
}

void FileWriter::State::tell_failure(const std::shared_ptr<File>& file) {
  Failure failure;
  {
    const std::lock_guard lock(mutex);
    failure = std::move(*file->failure);
    failure.rest += std::exchange(file->waiting, {});
    file->is_told = true;
    --untold_failures;
  }
  if (const auto on_failure = std::exchange(file->on_failure, {})) on_failure(failure);
}

// Looks only while something waits.
void FileWriter::State::watch() {
  if (!events.on_standing || std::exchange(is_watched, true)) return;
  timer->after(events.standing_limit / kLooksInLimit, [this] { look(); });
}

void FileWriter::State::look() {
  is_watched = false;
  Duration stood{0};
  {
    const std::lock_guard lock(mutex);
    if (queued_bytes == 0 && unopened == 0) return;
    stood = std::chrono::duration_cast<Duration>(Clock::now() - last_taken);
  }
  if (stood < told) told = Duration{0};  // Another time.
  if (stood >= std::max(events.standing_limit, 2 * told)) {
    told = stood;
    events.on_standing(stood);
  }
  watch();
}

FileWriter::FileWriter(asio::io_context& io) : FileWriter(io, Events{}) {}

FileWriter::FileWriter(asio::io_context& io, Events events)
    : state_(std::make_shared<State>(io, std::move(events))) {}

FileWriter::~FileWriter() {
  State& state = *state_;
  for (const auto& file : std::exchange(state.files, {})) file->on_failure = {};
  state.not_full.clear();
  state.timer.reset();
  state.events = {};
  if (!state.thread.joinable()) return;
  std::unique_lock lock(state.mutex);
  state.ends = true;
  state.work.notify_one();
  const auto left = [&] { return state.last_taken + kPatienceAtEnd - Clock::now(); };
  if (state.queued_bytes == 0 && state.unopened == 0) state.last_taken = Clock::now();
  while (!state.is_over && left() > Clock::duration::zero()) state.progress.wait_for(lock, left());
  const bool is_over = state.is_over;
  lock.unlock();
  if (is_over) {
    state.thread.join();
  } else {
    park_thread(std::move(state.thread));
  }
}

WrittenFile FileWriter::add(std::shared_ptr<File> file, OnFailure on_failure) {
  state_->begin_thread();
  file->on_failure = std::move(on_failure);
  state_->files.push_back(file);
  return {state_, std::move(file)};
}

WrittenFile FileWriter::open(UniqueFd fd, OnFailure on_failure) {
  DDP_CHECK(fd, "no file");
  auto file = std::make_shared<File>();
  file->fd = keep_back(std::move(fd));
  return add(std::move(file), std::move(on_failure));
}

WrittenFile FileWriter::open(Opener opener, OnFailure on_failure) {
  auto file = std::make_shared<File>();
  file->opener = std::move(opener);
  WrittenFile opened = add(file, std::move(on_failure));
  state_->watch();
  const std::lock_guard lock(state_->mutex);
  if (state_->queued_bytes == 0 && state_->unopened == 0) state_->last_taken = Clock::now();
  ++state_->unopened;
  state_->queue(file);
  return opened;
}

void FileWriter::run(Work work, OnFailure on_failure) {
  open(
      [work = std::move(work)]() -> Result<UniqueFd> {
        if (const auto done = work(); !done) return done.error();
        return UniqueFd();
      },
      std::move(on_failure))
      .close();
}

bool FileWriter::full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queued_bytes > kQueueLimitBytes;
}

void FileWriter::when_not_full(std::function<void()> callback) {
  state_->not_full.push_back(std::move(callback));
  const std::lock_guard lock(state_->mutex);
  state_->somebody_waits = true;
  state_->tell_not_full();  // The thread may have been quicker.
}

bool FileWriter::empty() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queued_bytes == 0 && state_->unopened == 0 && state_->untold_failures == 0;
}

std::size_t FileWriter::queued_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queued_bytes;
}

TimePoint FileWriter::last_taken() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_taken;
}

WrittenFile& WrittenFile::operator=(WrittenFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  state_ = std::move(other.state_);
  file_ = std::move(other.file_);
  return *this;
}

void WrittenFile::write(std::string_view bytes) {
  DDP_CHECK(file_ != nullptr, "no file");
  if (bytes.empty()) return;
  state_->watch();
  const std::lock_guard lock(state_->mutex);
  if (file_->is_told) return;
  if (file_->waiting.empty() && !state_->spares.empty()) {
    file_->waiting = std::move(state_->spares.back());
    state_->spares.pop_back();
  }
  file_->waiting += bytes;
  if (file_->failure) return;
  if (state_->queued_bytes == 0 && state_->unopened == 0) state_->last_taken = Clock::now();
  const std::size_t before = state_->queued_bytes;
  state_->queued_bytes += bytes.size();
  state_->queue(file_);
  if (before < kMuch && state_->queued_bytes >= kMuch) state_->work.notify_one();
}

void WrittenFile::close() {
  if (file_ == nullptr) return;
  {
    const std::lock_guard lock(state_->mutex);
    file_->is_closed = true;
    state_->queue(file_);
  }
  file_.reset();
  state_.reset();
}

}  // namespace ddp::agent
