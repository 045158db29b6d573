#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "worker/ddp/averaging/device_group.h"
#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The position of a device in `seen`; a new device is appended first. Ranks that distribute their
// tensors over devices in the same way get the same number, whatever the devices' own indices are.
int device_number(const c10::Device& device, std::vector<c10::Device>& seen);

// For BucketParameter::type: one number for each pair of type and device number.
inline int kind_number(DType type, int device) { return static_cast<int>(type) + 256 * device; }

// Throws std::invalid_argument for an entry that is for the CPU, has other ranks, has no group, or
// names a device a second time.
void check_device_groups(const std::vector<DeviceGroup>& groups, const ProcessGroup& host);

// Aborts all groups, unless there is only one rank.
void abort_all(ProcessGroup& host, const std::vector<DeviceGroup>& groups,
               const std::string& reason);

// How the gradients of one bucket get to the other ranks and back.
//
// A bucket in host memory is reduced there. A bucket on a device that has a group is reduced by
// that group. Neither is copied. Any other bucket, and every bucket that a communication hook
// takes, goes through a copy in the host group's registered memory; on_host() and land() then wait
// for the device. Hooks therefore see host memory, whatever device the model is on.
//
// A device group's operations run after the work that is in the current stream (see
// NcclGroupOptions::current_stream) when they are issued; the copy into the bucket is in that
// stream. land() follows a Work::wait() on the host, so every stream sees the results.
//
// The bucket and both groups must outlive this object. Used by one thread at a time.
class BucketRoute {
 public:
  BucketRoute(GradBucket& bucket, ProcessGroup& host, const std::vector<DeviceGroup>& groups);

  // Starts to reduce `bytes` bytes of the bucket, from `offset_bytes` on.
  WorkPtr all_reduce(std::size_t offset_bytes, std::size_t bytes, const ReduceOp& op,
                     OpOptions options);
  // The bucket with its current gradients in host memory, for a hook.
  GradBucket& on_host();
  // Call it when the operations or the hook are done: copies the results back if they are in a
  // copy.
  void land();

 private:
  GradBucket& copy();

  GradBucket& bucket_;
  ProcessGroup& host_;
  ProcessGroup* direct_ = nullptr;    // The group that takes the bucket's memory as it is.
  std::unique_ptr<GradBucket> copy_;  // In host memory. Made on first use.
  bool is_in_copy_ = false;           // land() has to copy the results back.
};

}  // namespace ddp
