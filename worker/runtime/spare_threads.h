#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/runtime/alarm.h"

namespace ddp::runtime {

// Threads that run a group's operations while its other threads tell listeners
// (OpOptions::on_done). A listener may wait for an operation that comes later, and it holds up the
// thread that tells it. So if something stays queued meanwhile, a spare thread runs it. Spare
// threads are made when first needed, and kept.
class SpareThreads {
 public:
  // mutex: guards the owner's queue, and is held in every call except join(). drain: runs all that
  // is queued, on a spare thread, without the mutex.
  SpareThreads(std::mutex& mutex, std::function<void()> drain)
      : mutex_(mutex), drain_(std::move(drain)) {}

  // A thread of the group, not a caller of wait(), is about to tell listeners, and has told them.
  void begin_telling();
  void end_telling();
  // The queue has something in it, and has become empty.
  void queued();
  void emptied();
  // From now on they end when the queue is empty.
  void stop();
  void join();

 private:
  void run();

  std::mutex& mutex_;
  const std::function<void()> drain_;
  Alarm held_up_;  // Wakes the threads. Set while something is queued and telling_ > 0.
  int telling_ = 0;
  int idle_ = 0;
  bool is_queued_ = false;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ddp::runtime
