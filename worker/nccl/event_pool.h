#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "worker/nccl/cuda_api.h"
#include "worker/nccl/library.h"

namespace ddp::nccl {

// Makes a device current for the calling thread; the destructor restores the previous one.
class DeviceGuard {
 public:
  DeviceGuard(const cuda::Api& api, int device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  const cuda::Api& api_;
  int before_ = -1;
  int device_;
};

// Reusable CUDA events of one device, without timing. An event that was given back may still be
// queried, but the result means nothing; no event is destroyed before the pool. So an event for a
// graph that is being captured must be a new one: to query it would be an error. Thread safe.
class EventPool {
 public:
  EventPool(std::shared_ptr<const NcclLibrary> library, int device)
      : library_(std::move(library)), device_(device) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  // The device must be current.
  cuda::Error acquire(cuda::Event& event);
  cuda::Error make_new(cuda::Event& event);
  void give_back(cuda::Event event);

 private:
  const std::shared_ptr<const NcclLibrary> library_;
  const int device_;
  std::mutex mutex_;
  std::vector<cuda::Event> all_;
  std::vector<cuda::Event> free_;
};

}  // namespace ddp::nccl
