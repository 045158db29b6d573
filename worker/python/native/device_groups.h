#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "common/store/store.h"
#include "worker/nccl/nccl_group.h"
#include "worker/runtime/process_group.h"

namespace ddp::python {

// The ranks of a group on one CUDA device of each: an NcclGroup, with its stream as PyTorch's.
class DeviceGroup {
 public:
  // For DeviceGroups. Collective; throws CollectiveError, std::invalid_argument.
  DeviceGroup(const std::shared_ptr<Store>& store, const NcclGroupOptions& options,
              c10::Device device);
  // Waits until the device is done with what was issued.
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  NcclGroup& group() { return *group_; }
  const c10::Stream& stream() const { return stream_; }
  // The operation that was issued last. Operations are done in order.
  void issued(WorkPtr work);

 private:
  std::shared_ptr<NcclGroup> group_;
  c10::Stream stream_;
  std::mutex mutex_;
  WorkPtr last_;
};

// Makes a group's DeviceGroup when a device is used for the first time, which all ranks must do in
// the same order. A failure of one, or of the group for host memory, is one of all. Any thread.
class DeviceGroups {
 public:
  // name: used once in the store. host: the group for host memory, with the same ranks.
  DeviceGroups(std::shared_ptr<Store> store, std::string name, std::shared_ptr<ProcessGroup> host,
               const ProcessGroupOptions& options);

  // Throws CollectiveError; std::invalid_argument if NCCL cannot be loaded.
  std::shared_ptr<DeviceGroup> of(c10::Device device);
  // What there is.
  std::vector<std::shared_ptr<DeviceGroup>> made();

 private:
  const std::shared_ptr<Store> store_;
  const std::string name_;
  const std::shared_ptr<ProcessGroup> host_;
  const ProcessGroupOptions options_;
  std::mutex mutex_;
  std::vector<std::pair<c10::Device, std::shared_ptr<DeviceGroup>>> groups_;
};

}  // namespace ddp::python
