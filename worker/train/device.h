#pragma once

#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "worker/runtime/process_group.h"
#include "worker/train/options.h"

namespace ddp::train {

// The devices of this worker's model: one, or two for a model-parallel one. With --device cuda
// those of its local rank, counted through the node's workers. Throws Failure with
// kExitInvalidValue if LibTorch has no CUDA or there are not enough devices.
std::vector<c10::Device> model_devices(const Options& options);

// The group for tensors on these devices: `host`, or a NcclGroup of the same ranks beside it whose
// failures abort `host`. Collective. Throws Failure with kExitInvalidValue where NCCL cannot be
// loaded, or where there are several workers of two CUDA devices each, since a NcclGroup is over
// one device; CollectiveError if the ranks do not meet.
std::shared_ptr<ProcessGroup> make_device_group(const Options& options,
                                                const std::vector<c10::Device>& devices,
                                                const std::shared_ptr<ProcessGroup>& host);

}  // namespace ddp::train
