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

// Sends whole tensors to the ranks that want them, in one exchange; on other ranks the result has
// an undefined tensor at that place. Every rank passes the same list except for its own parts. A
// rank needs memory only for what it sends and gets. Collective; throws CollectiveError.
std::vector<at::Tensor> gather_whole(const std::vector<WantedWhole>& wanted, ProcessGroup& group);

}  // namespace ddp
