#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ddp {

// The thread of one stage of a pipeline, or of one replica: runs what it is given, one after the
// other, in that order. LibTorch computes in it with as many threads as the process has set
// (at::set_num_threads) when it is made.
class StageThread {
 public:
  StageThread();
  ~StageThread() { stop(); }
  StageThread(const StageThread&) = delete;
  StageThread& operator=(const StageThread&) = delete;

  // From any thread. `task` must not throw. Throws std::logic_error after stop().
  void post(std::function<void()> task);

  // Runs what is still queued, then ends the thread. Not from the thread itself.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace ddp
