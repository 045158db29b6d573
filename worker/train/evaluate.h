#pragma once

#include <cstdint>

#include "worker/runtime/process_group.h"
#include "worker/train/dataset.h"
#include "worker/train/models/model.h"

namespace ddp::train {

// Share of the data set that the model classifies correctly, the same number on all ranks. Rank r
// looks at samples r, r + world, ...; each is counted once, whatever the world. The model's
// parameters and buffers must be equal on all ranks and stay as they are; its training mode is
// restored. Takes `batch` samples at a time. Collective.
double evaluate_accuracy(Model& model, const Dataset& data, std::int64_t batch,
                         ProcessGroup& group);

}  // namespace ddp::train
