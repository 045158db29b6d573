#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/ids.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// A tensor of which every rank has a part: parts of ranks 0, 1, ... follow one another from element
// 0 of its memory, and behind them may be a part that all ranks have.
struct ShardedTensor {
  at::Tensor like;  // Of the whole tensor's sizes and memory layout (packed_strides).
  std::vector<std::size_t> counts;  // Elements of each rank's part.
  at::Tensor own;                   // This rank's, flat.
  at::Tensor common;                // What all have, flat; undefined if it is empty.
};

// Who needs a whole one.
struct WantedWhole {
  ShardedTensor tensor;
  Rank rank = 0;
};

// Gives the ranks that want them the whole tensors, in one exchange; on other ranks the result is
// undefined at that place. Every rank gives the same list but for its own parts. A rank needs
// memory for what it gives and what it gets, and no more. Collective; throws CollectiveError.
std::vector<at::Tensor> gather_whole(const std::vector<WantedWhole>& wanted, ProcessGroup& group);

}  // namespace ddp
