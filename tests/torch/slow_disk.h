#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/plain_disk.h"

// The real disk with faults.
namespace ddp::test {

// Stands still or is full, for paths with `victim` in them, while it is told to. Any thread.
class SlowDisk final : public PlainDisk {
 public:
  std::string victim;              // Empty: all paths.
  std::atomic<bool> full = false;  // Creating a file fails.

  // Nothing is made from now on until go().
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  void go() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = false;
    }
    changed_.notify_all();
  }
  void go_after_a_while() {
    using std::chrono::milliseconds;
    std::this_thread::sleep_for(milliseconds(50));  // sleep: nobody sees that somebody waits.
    go();
  }
  void wait_until_failed() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [this] { return failed_; });
  }

  Result<std::unique_ptr<checkpoint::WritableFile>> create_file(const std::string& path) override {
    pass(path);
    if (!full || path.find(victim) == std::string::npos) return PlainDisk::create_file(path);
    {
      const std::lock_guard lock(mutex_);
      failed_ = true;
    }
    changed_.notify_all();
    return make_error(Errc::kIo, "cannot write {}: No space left on device", path);
  }
  Result<void> make_directory(const std::string& path) override {
    pass(path);
    return PlainDisk::make_directory(path);
  }

 private:
  void pass(const std::string& path) {
    std::unique_lock lock(mutex_);
    if (path.find(victim) == std::string::npos) return;
    changed_.wait(lock, [this] { return !stopped_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  bool failed_ = false;
};

}  // namespace ddp::test
