#include "worker/checkpoint/call_watch.h"

#include <chrono>
#include <utility>

namespace ddp::checkpoint {

CallWatch::CallWatch(const WatchedFiles& files, std::function<void(const StandingCall&)> tell)
    : files_(files), tell_(std::move(tell)), thread_([this] { run(); }) {}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CallWatch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return stopped_; })) {
    const auto call = files_.standing();
    if (!call || call->seconds < std::chrono::duration<double>(kLook).count()) continue;
    lock.unlock();
    tell_(*call);
    lock.lock();
  }
}

void LifeFile::tell(std::string text) {
  {
    const std::lock_guard lock(mutex_);
    if (!active_) return;
    text_ = std::move(text);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void LifeFile::fail(std::string text) {
  {
    const std::lock_guard lock(mutex_);
    failed_ = true;
  }
  tell(std::move(text));
}

void LifeFile::begin() {
  const std::lock_guard lock(mutex_);
  active_ = true;
}

void LifeFile::stop() {
  {
    const std::lock_guard lock(mutex_);
    active_ = false;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LifeFile::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !active_ || text_; });
    if (!active_) return;
    const std::string text = *std::exchange(text_, std::nullopt);
    const bool failed = failed_;
    lock.unlock();
    if (failed) {
      (void)folder_.add_failure(text);
    } else {
      folder_.add_life(text);
    }
    lock.lock();
  }
}

}  // namespace ddp::checkpoint
