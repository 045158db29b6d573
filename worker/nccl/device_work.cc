#include "worker/nccl/device_work.h"

#include "worker/nccl/backoff.h"
#include "worker/nccl/nccl_engine.h"

namespace ddp::nccl {

void DeviceWork::wait() {
  nccl::Backoff backoff;
  while (!done()) {
    // The engine outlives its works.
    if (const auto engine = engine_.lock()) engine->advance(*this);
    if (!done()) backoff.pause();
  }
  throw_if_failed();
}

void DeviceWork::wait_stream(cuda::Stream stream) {
  nccl::Backoff backoff;
  while (!done() && !enqueued_.load(std::memory_order_acquire)) {
    if (const auto engine = engine_.lock()) engine->advance(*this);
    backoff.pause();
  }
  if (const auto engine = engine_.lock()) engine->order_behind(*this, stream);
  throw_if_failed();
}

void DeviceWork::fail(const Failure& failure) {
  failure_ = failure;
  state_.store(kFailed, std::memory_order_release);
}

void DeviceWork::tell() {
  const auto on_done = std::exchange(on_done_, nullptr);
  if (!on_done) return;
  const bool failed = state_.load(std::memory_order_acquire) == kFailed;
  on_done(failed ? std::make_exception_ptr(CollectiveError(failure_)) : nullptr);
}

void DeviceWork::throw_if_failed() const {
  if (state_.load(std::memory_order_acquire) != kFailed) return;
  throw CollectiveError(failure_);
}

}  // namespace ddp::nccl
