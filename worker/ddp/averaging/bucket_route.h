#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "worker/ddp/averaging/grad_bucket.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// A group for memory of one device of this process: a NcclGroup, for example. It has the same ranks
// as the process group that it stands beside, which is one of host memory.
struct DeviceGroup {
  c10::Device device;
  std::shared_ptr<ProcessGroup> group;
};

// Number of a device among those that appear in `seen`, where it is put if it is new. Equal on
// ranks whose tensors lie alike on devices, whatever the numbers of these are.
int device_number(const c10::Device& device, std::vector<c10::Device>& seen);

// For BucketParameter::type: tells types and numbers of devices apart.
inline int kind_number(DType type, int device) { return static_cast<int>(type) + 256 * device; }

// Throws std::invalid_argument for one of the CPU, of other ranks, without a group, or twice.
void check_device_groups(const std::vector<DeviceGroup>& groups, const ProcessGroup& host);

// Aborts all of them, unless there is one rank only.
void abort_all(ProcessGroup& host, const std::vector<DeviceGroup>& groups,
               const std::string& reason);

// How the gradients of one bucket get to the other ranks and back.
//
// A bucket in host memory is reduced there, and a bucket on a device of which there is a group in
// that group, without a copy in either case. Any other one, and every one that a communication hook
// takes, goes through a copy in the host group's registered memory; then on_host() and
// land() wait for the device. Hooks therefore see host memory, whatever device the model is on.
//
// With a device group: its operations follow what is in the stream that it asks for (see
// NcclGroupOptions::current_stream) when they are issued, which is where the copy into the bucket
// is; land() follows a Work::wait() on the host, so results are there for every stream.
//
// The bucket and both groups outlive it. Used by one thread at a time.
class BucketRoute {
 public:
  BucketRoute(GradBucket& bucket, ProcessGroup& host, const std::vector<DeviceGroup>& groups);

  // Starts to reduce a part of the bucket, beginning at a byte.
  WorkPtr all_reduce(std::size_t offset_bytes, std::size_t bytes, const ReduceOp& op,
                     OpOptions options);
  // The bucket with its present gradients in host memory: what a hook is given.
  GradBucket& on_host();
  // Once the operations or the hook are done: brings results back that are in a copy.
  void land();

 private:
  GradBucket& copy();

  GradBucket& bucket_;
  ProcessGroup& host_;
  ProcessGroup* direct_ = nullptr;    // That takes the bucket's memory as it is.
  std::unique_ptr<GradBucket> copy_;  // In host memory. Made when it is first needed.
  bool is_in_copy_ = false;           // What land() has to bring back.
};

}  // namespace ddp
