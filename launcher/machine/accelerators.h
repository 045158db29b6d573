#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/environment.h"

namespace ddp::machine {

// A kind of device that --nproc-per-node can count. Names are torch.accelerator's, except gpu for
// cuda, as in torchrun.
struct Accelerator {
  std::string_view name;
  std::string_view device;  // A device's name in messages.
  std::string_view places;  // Where ddp-run looks for them, for messages.
};

// All kinds, in the order in which `auto` looks for them.
std::span<const Accelerator> accelerators();
// Null if ddp-run cannot count this kind.
const Accelerator* find_accelerator(std::string_view name);

// How many devices of a kind this process may use: those that the driver's environment variable
// lists, or without it those that the kernel shows below `root`. kAnyAccelerator counts the first
// kind that is present, without the GPU inside a CPU, which is rarely meant for training.
inline constexpr std::string_view kAnyAccelerator = "auto";
int count_accelerators(std::string_view name, const GetEnvironment& environment,
                       const std::string& root = "");

}  // namespace ddp::machine
