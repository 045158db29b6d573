#include "worker/nccl/abort_relay.h"

#include <utility>

#include <pthread.h>

#include "common/process/parked_threads.h"
#include "worker/nccl/rendezvous.h"

namespace ddp::nccl {

AbortRelay::AbortRelay(std::shared_ptr<Store> store, std::string key,
                       std::chrono::milliseconds interval,
                       std::function<void(const Failure&)> on_told)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
  shared_->key = std::move(key);
  shared_->interval = interval;
  shared_->on_told = std::move(on_told);
  thread_ = std::thread([shared = shared_] { run(shared); });
}

AbortRelay::~AbortRelay() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->changed.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    park_thread(std::move(thread_));
  } else {
    thread_.join();
  }
}

void AbortRelay::tell(const Failure& failure) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->to_tell) shared_->to_tell = failure;
  }
  shared_->changed.notify_all();
}

void AbortRelay::run(const std::shared_ptr<Shared>& shared) {
  ::pthread_setname_np(::pthread_self(), "ddp-nccl-relay");
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait_for(lock, shared->interval,
                             [&] { return shared->stopping || shared->to_tell; });
    const std::optional<Failure> own = shared->to_tell;
    const bool stopping = shared->stopping;
    lock.unlock();
    if (own) {
      (void)shared->store->compare_set(shared->key, "", encode_failure(*own));
      return;
    }
    if (stopping) return;
    const auto there = shared->store->check({shared->key});
    if (!there) return;
    if (*there) {
      const auto value = shared->store->get(shared->key, shared->interval);
      if (value) shared->on_told(decode_failure(*value));
      return;
    }
    lock.lock();
  }
}

}  // namespace ddp::nccl
