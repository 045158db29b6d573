#pragma once

#include <string>

#include "launcher/check/verdict/facts.h"

namespace ddp::check {

// Asks NVML (libnvidia-ml.so.1, which comes with NVIDIA's driver and is loaded here) for this
// machine's GPUs. Without device files below `root`/dev, nothing is loaded.
void probe_gpus(LocalFacts& facts, const std::string& root = "");

}  // namespace ddp::check
