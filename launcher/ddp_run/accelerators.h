#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launcher/ddp_run/flags.h"

namespace ddp::run {

// A kind of device that --nproc-per-node can count, under torch.accelerator's name, but gpu for
// cuda, as torchrun has it.
struct Accelerator {
  std::string_view name;
  std::string_view device;  // What one is called in messages.
  std::string_view places;  // Where they are looked for, for messages.
};

// In the order in which `auto` looks for them.
std::span<const Accelerator> accelerators();
// Null if ddp-run cannot count them.
const Accelerator* find_accelerator(std::string_view name);

// How many of a kind this process may use: those that the variable of the kind's driver lists if it
// is set, else those that the kernel shows below `root`. Of kAnyAccelerator, those of the first
// kind that is there; the GPU inside a CPU is none then, as it is rarely meant for training.
inline constexpr std::string_view kAnyAccelerator = "auto";
int count_accelerators(std::string_view name, const GetEnvironment& environment,
                       const std::string& root = "");

}  // namespace ddp::run
