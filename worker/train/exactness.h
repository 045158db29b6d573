#pragma once

#include <vector>

#include <c10/core/Device.h>

// Equal trainings end with equal bytes: what LibTorch and CUDA need to be told for it.
namespace ddp::train {

// Sets variables of the environment that CUDA's libraries read when a device is first used. Call it
// before there are threads.
void prepare_exact_devices();

// From now on LibTorch chooses algorithms whose results do not vary.
void compute_exactly();

// Seeds the generators of these devices from the CPU's. Only the latter's state is kept, in
// checkpoints and commits, so what a device draws must depend on it alone. Does nothing for the
// CPU.
void seed_devices(const std::vector<c10::Device>& devices);

}  // namespace ddp::train
