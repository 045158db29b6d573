#pragma once

#include <chrono>

#include "common/base/clock.h"

// How long this process has waited for other ranks. A late rank is not one that takes long for a
// step, because all ranks wait for the slowest. It is one that computes while the others wait for
// it. So each rank measures how much of its time it does not wait, and tells it with its progress.
//
// One account for the process, which is one rank, over all its groups. Any thread.
namespace ddp::runtime {

// Until its end, the thread waits for other ranks. A time in which several threads wait counts
// once. Reads the clock only where the caller has not.
class Waiting {
 public:
  explicit Waiting(TimePoint since = Clock::now());
  ~Waiting() {
    if (counts_) end(Clock::now());
  }
  // Idempotent.
  void end(TimePoint now);
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  bool counts_;  // It has not ended, and its thread's waits are not ignored.
};

// The thread runs operations while the program computes, so its waits hold up nobody.
void ignore_waits_of_this_thread();

// PyTorch waits for an operation's future, and nobody is told of that. Its DistributedDataParallel
// does so at the end of a step, for the operations of all buckets. So the time from the issue of a
// step's last operation with a future to its end counts as waiting, unless the program calls wait()
// on it. `issued` identifies the operation.
void future_issued(TimePoint issued);
void future_done(TimePoint issued);
void future_is_waited_for(TimePoint issued);

// The time until `now` that this process has not waited, from any fixed moment on. Call it at the
// end of each step.
std::chrono::nanoseconds computed_time(TimePoint now);

}  // namespace ddp::runtime
