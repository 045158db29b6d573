#pragma once

#include <memory>

#include "worker/train/models/two_stage.h"

namespace ddp::train {

// Linear layers of 10 - 10 - 5 with a ReLU between: net1 and net2 of PyTorch's DDP tutorial.
// The loss is the mean squared error. The cut is between the two layers.
std::shared_ptr<TwoStageModel> make_toy();

}  // namespace ddp::train
