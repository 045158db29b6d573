#pragma once

#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "worker/ddp/averaging/bucket_route.h"
#include "worker/runtime/process_group.h"
#include "worker/train/options.h"

namespace ddp::train {

// The devices of this worker's model: one, or two for a model-parallel model. With --device cuda,
// the node's devices are dealt out to its workers in the order of their local ranks. Throws
// TrainingFailure with kExitInvalidValue if LibTorch has no CUDA or there are not enough devices.
std::vector<c10::Device> model_devices(const Options& options);

// The groups that reduce memory of these devices: for each CUDA device, a NcclGroup with the ranks
// of `host`. A failure of one of them aborts `host`. Empty for the CPU or for one worker.
// Collective. Throws TrainingFailure with kExitInvalidValue if NCCL cannot be loaded,
// CollectiveError if the ranks cannot connect.
std::vector<DeviceGroup> make_device_groups(const Options& options,
                                            const std::vector<c10::Device>& devices,
                                            const std::shared_ptr<ProcessGroup>& host);

}  // namespace ddp::train
