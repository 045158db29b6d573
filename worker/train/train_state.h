#pragma once

#include <cstdint>

namespace ddp::train {

// Position of a training. Together with the tensors and the generators, it is all that later steps
// depend on.
struct TrainState {
  std::int64_t epoch = 0;       // Of the current steps, from 0.
  std::int64_t position = 0;    // In the epoch's permutation, as in DistributedSampler.
  std::int64_t step = 0;        // Steps done in the whole training.
  double loss_sum = 0;          // Sum of the losses of this rank in this epoch.
  std::int64_t loss_count = 0;  // Number of samples in loss_sum.
};

}  // namespace ddp::train
