#pragma once

#include <cstdint>

#include "worker/ddp/loop/training_loop.h"

namespace ddp::train {

// The position of a training, and the losses on the way there.
struct TrainState : loop::LoopState {
  double loss_sum = 0;          // Sum of the losses of this rank in this epoch.
  std::int64_t loss_count = 0;  // Number of samples in loss_sum.
};

}  // namespace ddp::train
