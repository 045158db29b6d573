#pragma once

#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "worker/ddp/averaging/bucket_route.h"
#include "worker/runtime/process_group.h"
#include "worker/train/options.h"

namespace ddp::train {

// The devices of this worker's model: one, or two for a model-parallel one. With --device cuda
// those of its local rank, counted through the node's workers. Throws Failure with
// kExitInvalidValue if LibTorch has no CUDA or there are not enough devices.
std::vector<c10::Device> model_devices(const Options& options);

// The groups that stand beside `host` for memory of these devices: for each CUDA device a NcclGroup
// of the same ranks whose failures abort `host`; none for the CPU or for one worker. Collective.
// Throws Failure with kExitInvalidValue where NCCL cannot be loaded; CollectiveError if the ranks
// do not meet.
std::vector<DeviceGroup> make_device_groups(const Options& options,
                                            const std::vector<c10::Device>& devices,
                                            const std::shared_ptr<ProcessGroup>& host);

}  // namespace ddp::train
