#include "worker/nccl/event_pool.h"

namespace ddp::nccl {

DeviceGuard::DeviceGuard(const cuda::Api& api, int device) : api_(api), device_(device) {
  if (api_.get_device(&before_) != cuda::kSuccess) before_ = -1;
  if (before_ != device_) api_.set_device(device_);
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0 && before_ != device_) api_.set_device(before_);
}

EventPool::~EventPool() {
  const DeviceGuard guard(library_->cuda(), device_);
  for (cuda::Event event : all_) library_->cuda().event_destroy(event);
}

cuda::Error EventPool::acquire(cuda::Event& event) {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
      return cuda::kSuccess;
    }
  }
  return make_new(event);
}

cuda::Error EventPool::make_new(cuda::Event& event) {
  const cuda::Error error =
      library_->cuda().event_create_with_flags(&event, cuda::kEventDisableTiming);
  if (error != cuda::kSuccess) return error;
  const std::lock_guard lock(mutex_);
  all_.push_back(event);
  return cuda::kSuccess;
}

void EventPool::give_back(cuda::Event event) {
  if (event == nullptr) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

}  // namespace ddp::nccl
