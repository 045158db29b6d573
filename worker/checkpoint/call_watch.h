#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "worker/checkpoint/save_folder.h"
#include "worker/checkpoint/watched_files.h"

namespace ddp::checkpoint {

// Tells, from a thread of its own and about once a second, which call of a writer stands. It never
// touches the disk.
class CallWatch {
 public:
  static constexpr Duration kLook{1'000};

  // `files` outlives the object. `tell` is called for every call that has stood for kLook or
  // longer, at each look.
  CallWatch(const WatchedFiles& files, std::function<void(const StandingCall&)> tell);
  // Returns when `tell` has returned.
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

 private:
  void run();

  const WatchedFiles& files_;
  const std::function<void(const StandingCall&)> tell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;
};

// Leaves a sign of life in the folder of a save, for its publisher (SaveFolder::add_life): from a
// thread of its own, because the disk that holds up the writer may hold up this, too.
class LifeFile {
 public:
  // `files` outlives the object. `plan` is copied as far as needed.
  LifeFile(FileSystem& files, const SnapshotPlan& plan) : folder_(files, plan) {}
  ~LifeFile() { stop(); }
  LifeFile(const LifeFile&) = delete;
  LifeFile& operator=(const LifeFile&) = delete;

  // Returns at once; any thread. Of several texts that come while the disk is slow, the last one
  // is written. Nothing is written before begin() or after stop().
  void tell(std::string text);
  // The same, but says that this rank gives up, and why (SaveFolder::add_failure).
  void fail(std::string text);
  void begin();
  // Returns when nothing is being written, however long the disk takes. Call it before the
  // publisher can find this rank's part: from then on the folder may be published at any time.
  void stop();

 private:
  void run();

  SaveFolder folder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool active_ = false;
  bool failed_ = false;
  std::optional<std::string> text_;
  std::thread thread_;
};

}  // namespace ddp::checkpoint
