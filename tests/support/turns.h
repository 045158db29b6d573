#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "worker/checkpoint/file_system.h"

namespace ddp::test {

// Simulates several processes on one file system. Each is a thread, and one runs at a time. The
// turn changes only where one of them uses the file system or waits; a seeded random generator
// chooses the next one, so the same seed gives the same run. The file system need not be thread
// safe.
class Turns {
 public:
  // The view of one process. After it is killed, every operation fails until it is revived.
  class Process final : public checkpoint::FileSystem {
   public:
    Process(Turns& turns, std::size_t index) : turns_(turns), index_(index) {}

    // It dies before its n-th change of the file system from now, counted from 0.
    void kill_at(std::size_t change) { kill_at_ = changes_ + change; }
    bool killed() const { return changes_ > kill_at_; }
    void revive() { kill_at_ = kNever; }
    std::size_t changes() const { return changes_; }

    // Time passes only while waiting.
    TimePoint now() const { return turns_.now_; }
    void pass(std::chrono::nanoseconds time) {
      turns_.now_ += std::chrono::duration_cast<Clock::duration>(time);
      turns_.yield(index_);
    }

    Result<void> make_directory(const std::string& path) override {
      return change<void>([&] { return files().make_directory(path); });
    }
    Result<std::unique_ptr<checkpoint::WritableFile>> create_file(
        const std::string& path) override {
      using Opened = std::unique_ptr<checkpoint::WritableFile>;
      auto file = change<Opened>([&] { return files().create_file(path); });
      if (!file) return file;
      return Opened(std::make_unique<Writable>(*this, std::move(*file)));
    }
    Result<std::unique_ptr<checkpoint::ReadableFile>> open_file(const std::string& path) override {
      return look<std::unique_ptr<checkpoint::ReadableFile>>(
          [&] { return files().open_file(path); });
    }
    Result<std::shared_ptr<const checkpoint::MappedFile>> map_file(
        const std::string& path) override {
      return look<std::shared_ptr<const checkpoint::MappedFile>>(
          [&] { return files().map_file(path); });
    }
    Result<std::vector<std::string>> list(const std::string& path) override {
      return look<std::vector<std::string>>([&] { return files().list(path); });
    }
    Result<void> rename(const std::string& from, const std::string& to) override {
      return change<void>([&] { return files().rename(from, to); });
    }
    Result<void> remove_file(const std::string& path) override {
      return change<void>([&] { return files().remove_file(path); });
    }
    Result<void> remove_directory(const std::string& path) override {
      return change<void>([&] { return files().remove_directory(path); });
    }
    Result<void> sync_directory(const std::string& path) override {
      return change<void>([&] { return files().sync_directory(path); });
    }
    Result<void> make_symlink(const std::string& target, const std::string& path) override {
      return change<void>([&] { return files().make_symlink(target, path); });
    }

   private:
    static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

    class Writable final : public checkpoint::WritableFile {
     public:
      Writable(Process& process, std::unique_ptr<checkpoint::WritableFile> file)
          : process_(process), file_(std::move(file)) {}
      Result<void> sync() override {
        return process_.change<void>([&] { return file_->sync(); });
      }
      Result<void> close() override {
        return process_.change<void>([&] { return file_->close(); });
      }

     private:
      Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
        return process_.change<std::size_t>([&]() -> Result<std::size_t> {
          auto written = file_->append(bytes);
          if (!written) return written.error();
          return bytes.size();
        });
      }
      Process& process_;
      std::unique_ptr<checkpoint::WritableFile> file_;
    };

    checkpoint::FileSystem& files() { return turns_.files_; }
    static Error dead() { return make_error(Errc::kIo, "this process is dead"); }

    template <typename T, typename Call>
    Result<T> change(Call call) {
      if (changes_ >= kill_at_) {
        ++changes_;
        return dead();
      }
      turns_.yield(index_);
      if (turns_.before_change_) turns_.before_change_();
      ++changes_;
      return call();
    }
    template <typename T, typename Call>
    Result<T> look(Call call) {
      if (changes_ >= kill_at_) {
        ++changes_;
        return dead();
      }
      turns_.yield(index_);
      return call();
    }

    Turns& turns_;
    std::size_t index_;
    std::size_t changes_ = 0;
    std::size_t kill_at_ = kNever;
  };

  // The file system outlives the object. `before_change` is called before every change, when
  // nobody else runs; may be empty.
  Turns(checkpoint::FileSystem& files, std::uint64_t seed, std::function<void()> before_change = {})
      : files_(files), dice_(seed), before_change_(std::move(before_change)) {}

  // Runs the bodies to their ends.
  void run(const std::vector<std::function<void(Process&)>>& bodies) {
    std::vector<std::unique_ptr<Process>> processes;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      processes.push_back(std::make_unique<Process>(*this, i));
    }
    running_.clear();
    for (std::size_t i = 0; i < bodies.size(); ++i) running_.push_back(i);
    wake_ = std::vector<std::condition_variable>(bodies.size());
    current_ = running_[dice_() % running_.size()];
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      threads.emplace_back([&, i] {
        wait_for_turn(i);
        bodies[i](*processes[i]);
        leave(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void wait_for_turn(std::size_t index) {
    std::unique_lock lock(mutex_);
    wake_[index].wait(lock, [&] { return current_ == index; });
  }
  void yield(std::size_t index) {
    const std::size_t next = running_[dice_() % running_.size()];
    if (next == index) return;
    std::unique_lock lock(mutex_);
    current_ = next;
    wake_[next].notify_one();
    wake_[index].wait(lock, [&] { return current_ == index; });
  }
  void leave(std::size_t index) {
    std::erase(running_, index);
    if (running_.empty()) return;
    const std::lock_guard lock(mutex_);
    current_ = running_[dice_() % running_.size()];
    wake_[current_].notify_one();
  }

  checkpoint::FileSystem& files_;
  std::mt19937_64 dice_;
  std::function<void()> before_change_;
  TimePoint now_{};
  std::mutex mutex_;
  std::vector<std::condition_variable> wake_;
  std::vector<std::size_t> running_;
  std::size_t current_ = 0;
};

}  // namespace ddp::test
