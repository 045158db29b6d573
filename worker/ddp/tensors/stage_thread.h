#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ddp {

// The thread of one pipeline stage or one replica. It runs its tasks one after another, in order.
// LibTorch computes in it with the number of threads that the process had set (at::set_num_threads)
// when the thread was made.
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
