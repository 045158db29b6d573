#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "worker/checkpoint/file_system.h"

// The real disk with faults.
namespace ddp::test {

// As the real one: for deriving from.
class PlainDisk : public checkpoint::FileSystem {
 public:
  Result<std::unique_ptr<checkpoint::WritableFile>> create_file(const std::string& path) override {
    return disk_.create_file(path);
  }
  Result<std::unique_ptr<checkpoint::ReadableFile>> open_file(const std::string& path) override {
    return disk_.open_file(path);
  }
  Result<std::shared_ptr<const checkpoint::MappedFile>> map_file(const std::string& path) override {
    return disk_.map_file(path);
  }
  Result<void> make_directory(const std::string& path) override {
    return disk_.make_directory(path);
  }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return disk_.list(path);
  }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return disk_.rename(from, to);
  }
  Result<void> remove_file(const std::string& path) override { return disk_.remove_file(path); }
  Result<void> remove_directory(const std::string& path) override {
    return disk_.remove_directory(path);
  }
  Result<void> sync_directory(const std::string& path) override {
    return disk_.sync_directory(path);
  }
  Result<void> make_symlink(const std::string& target, const std::string& path) override {
    return disk_.make_symlink(target, path);
  }

 private:
  checkpoint::FileSystem& disk_ = checkpoint::posix_file_system();
};

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
