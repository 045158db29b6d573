#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "common/process/parked_threads.h"
#include "worker/nccl/backoff.h"
#include "worker/nccl/nccl_engine.h"

// How an NcclEngine notices that something is wrong, and how it ends.
namespace ddp::nccl {
namespace {

constexpr Duration kBusyLook{5};
constexpr Duration kIdleLook{100};

}  // namespace

// ---- The watchdog.

void NcclEngine::run_watchdog() {
  begin_thread("ddp-nccl-watch");
  std::unique_lock lock(mutex_);
  while (!stop_watch_) {
    const bool idle = queue_.empty() && running_.empty();
    watch_changed_.wait_for(lock, idle ? kIdleLook : kBusyLook);
    if (stop_watch_) break;
    lock.unlock();
    watch();
    lock.lock();
  }
  watch_ended_ = true;
  changed_.notify_all();
}

void NcclEngine::watch() {
  if (failed_.load(std::memory_order_acquire)) {
    settle();
    return;
  }
  poll_running();
  if (auto failure = options_.failure_elsewhere ? options_.failure_elsewhere() : Outcome{}) {
    failure->told = true;
    fail(std::move(*failure), Tell::kYes);
    return;
  }
  if (auto failure = communicator_.async_error()) {
    WorkPtr oldest;
    {
      const std::lock_guard lock(mutex_);
      if (!running_.empty()) oldest = running_.front();
    }
    fail_named(oldest.get(), std::move(*failure));
    return;
  }
  expire();
}

void NcclEngine::poll_running() {
  std::vector<WorkPtr> running;
  {
    const std::lock_guard lock(mutex_);
    running.assign(running_.begin(), running_.end());
  }
  // Operations complete in order.
  for (const WorkPtr& work : running) {
    if (!poll(*work)) return;
  }
}

// Fails the engine if an operation's deadline has passed.
void NcclEngine::expire() {
  WorkPtr late;
  WorkPtr before;
  const TimePoint now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    for (const auto* list : {&running_, &queue_}) {
      for (const WorkPtr& work : *list) {
        if (!late && work->operation().deadline <= now) late = work;
        if (!late) before = work;
      }
    }
  }
  if (!late) return;
  std::string reason = "not all ranks have reached it, or the device is busy with earlier work";
  if (before) {
    reason = fmt::format("it waits for {}, which is not done", before->name());
  } else if (!late->enqueued_.load(std::memory_order_acquire)) {
    reason = "NCCL has not started it: it is still connecting to other ranks";
  }
  fail_named(late.get(), {Errc::kTimeout, -1,
                          fmt::format("timed out after {} ms on rank {}: {}",
                                      late->operation().timeout.count(), options_.rank, reason)});
}

// ---- Failure and end.

void NcclEngine::run_abort() {
  begin_thread("ddp-nccl-abort");
  communicator_.abort();
  std::deque<WorkPtr> running;
  TimePoint limit{};
  {
    std::unique_lock lock(mutex_);
    limit = failed_at_ + options_.abort_grace;
    // The operation that it was launching may just have entered the stream.
    changed_.wait_until(lock, limit, [&] { return !launching_; });
    running = running_;
  }
  nccl::Backoff backoff(std::chrono::milliseconds(1));
  while (!device_is_through(running) && Clock::now() < limit) backoff.pause();
  {
    const std::lock_guard lock(mutex_);
    abort_done_ = true;
  }
  changed_.notify_all();
  settle();
}

// Whether the device is done with the buffers: an abort tells the kernels to end, and until they
// have ended, they may use them.
bool NcclEngine::device_is_through(const std::deque<WorkPtr>& works) const {
  return std::none_of(works.begin(), works.end(), [&](const WorkPtr& work) {
    return !work->operation().captured && work->enqueued_.load(std::memory_order_acquire) &&
           library_->cuda().event_query(work->completed_) == cuda::kNotReady;
  });
}

// Fails the pending operations, once the device is through with them or abort_grace has passed.
// NCCL takes some hundred milliseconds more until an abort returns.
void NcclEngine::settle() {
  std::deque<WorkPtr> pending;
  Failure failure;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) return;
    const bool is_over = abort_done_ || (!launching_ && device_is_through(running_));
    if (!is_over && Clock::now() < failed_at_ + options_.abort_grace) return;
    failure = *failure_;
    if (!is_over) {
      failure.text += fmt::format(
          " (ncclCommAbort on rank {} has not returned after {} ms: the device may still use the "
          "buffers; end the process)",
          options_.rank, options_.abort_grace.count());
    }
    pending.swap(running_);
    pending.insert(pending.end(), queue_.begin(), queue_.end());
    queue_.clear();
    for (const WorkPtr& work : pending) work->fail(failure);
  }
  for (const WorkPtr& work : pending) {
    if (!work->operation().captured) work->tell();  // issue() throws.
  }
}

// on_failure may drop the last reference to the group. So this may run on one of the engine's own
// threads, which then cannot be joined.
void NcclEngine::close() {
  const auto self = std::this_thread::get_id();
  if (!failed_.load()) poll_running();
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  if (!queue_.empty() || !running_.empty() || stage_ != Stage::kReady) {
    lock.unlock();
    fail(
        {Errc::kAborted, options_.rank,
         fmt::format("rank {} destroyed the group before its operations were done", options_.rank)},
        Tell::kYes);
    lock.lock();
  }
  const auto ended = [&] {
    const bool communication =
        communication_ended_ || communication_.get_id() == self || stage_ == Stage::kConnecting;
    return communication && (!failure_ || abort_done_);
  };
  if (!failure_ && !changed_.wait_for(lock, options_.close_timeout, ended)) {
    lock.unlock();
    fail({Errc::kTimeout, -1,
          fmt::format("rank {}: the communicator did not close within {} ms, because other ranks "
                      "of the node have not closed theirs",
                      options_.rank, options_.close_timeout.count())},
         Tell::kNo);
    lock.lock();
  }
  changed_.wait_for(lock, options_.abort_grace, ended);
  stop_watch_ = true;
  watch_changed_.notify_all();
  changed_.wait_for(lock, options_.abort_grace,
                    [&] { return watch_ended_ || watchdog_.get_id() == self; });
  closed_ = true;
  const bool communication_ended = communication_ended_;
  const bool watch_ended = watch_ended_;
  const bool abort_ended = abort_done_;
  lock.unlock();
  settle();
  end_thread(communication_, communication_ended);
  end_thread(watchdog_, watch_ended);
  end_thread(abort_, abort_ended);
}

void NcclEngine::end_thread(std::thread& thread, bool ended) {
  if (!thread.joinable()) return;
  if (ended) {
    thread.join();
  } else {
    park_thread(std::move(thread));
  }
}

}  // namespace ddp::nccl
