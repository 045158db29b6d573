#pragma once

#include <cstdint>

namespace ddp::train {

// Where a training is, besides its tensors and generators: all that the steps to come depend on.
struct TrainState {
  std::int64_t epoch = 0;     // The one that steps belong to, from 0.
  std::int64_t position = 0;  // In its permutation, as DistributedSampler counts.
  std::int64_t step = 0;      // Steps done in the whole training.
  double loss_sum = 0;        // Of this rank's samples in this epoch, and their number.
  std::int64_t loss_count = 0;
};

}  // namespace ddp::train
