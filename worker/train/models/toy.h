#pragma once

#include <cstdint>
#include <memory>

#include "worker/train/models/two_stage.h"

namespace ddp::train {

// 10 - hidden - 5, with a ReLU between; the mean squared error. net1 and net2 of PyTorch's DDP
// tutorial; the cut is between them.
std::shared_ptr<TwoStageModel> make_toy(std::int64_t hidden);

}  // namespace ddp::train
