#include "worker/runtime/spare_threads.h"

#include <poll.h>

#include <pthread.h>

namespace ddp::runtime {
namespace {

// Most listeners are told sooner.
constexpr std::chrono::milliseconds kHeldUp{5};

}  // namespace

void SpareThreads::begin_telling() {
  ++telling_;
  if (is_queued_) queued();
}

void SpareThreads::end_telling() {
  if (--telling_ == 0 && !is_stopping_) held_up_.clear();
}

void SpareThreads::queued() {
  is_queued_ = true;
  if (telling_ == 0) return;
  held_up_.set(kHeldUp);
  if (idle_ == 0 && !is_stopping_) threads_.emplace_back([this] { run(); });
}

void SpareThreads::emptied() {
  is_queued_ = false;
  if (!is_stopping_) held_up_.clear();
}

void SpareThreads::stop() {
  is_stopping_ = true;
  held_up_.clear();
  held_up_.set(std::chrono::nanoseconds(1));
}

void SpareThreads::join() {
  for (std::thread& thread : threads_) thread.join();
}

void SpareThreads::run() {
  ::pthread_setname_np(::pthread_self(), "ddp-comm");
  std::unique_lock lock(mutex_, std::defer_lock);
  for (;;) {
    drain_();
    lock.lock();
    // A listener may wait for what is queued; without a thread it would wait for ever.
    if (is_stopping_ && !is_queued_) return;
    ++idle_;
    lock.unlock();
    pollfd entry{held_up_.fd(), POLLIN, 0};
    ::poll(&entry, 1, -1);
    lock.lock();
    --idle_;
    lock.unlock();
  }
}

}  // namespace ddp::runtime
