#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/ids.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// A tensor of which every rank has a part: parts of ranks 0, 1, ... follow one another from element
// 0 of its memory, and behind them may be a part that all ranks have. Several ranks may have the
// same part; then the first of them counts.
struct ShardedTensor {
  at::Tensor like;  // Of the whole tensor's sizes and memory layout (packed_strides).
  std::vector<std::size_t> counts;  // Elements of each rank's part; 0 where it does not count.
  at::Tensor own;                   // This rank's; its elements in row-major order are the part.
  at::Tensor common = {};           // What all have, flat; undefined if it is empty.
  std::size_t begin = 0;            // Where `own` begins in the whole's memory.
};

// A tensor that is divided along dimension `dim`, as PyTorch's DTensor is by Shard(dim). `local`:
// this rank's rows, from row `begin` on, of a whole tensor with these sizes. `rows`: how many each
// rank contributes, in the order of ranks, which is that of the rows.
ShardedTensor divided_along(std::int64_t dim, const at::Tensor& local, std::int64_t begin,
                            const std::vector<std::int64_t>& rows, at::IntArrayRef sizes);

// This rank's part of a whole tensor on the CPU, with the sizes of `own`, to be copied from. A view
// of it if it has the same memory layout.
at::Tensor own_part_of(const at::Tensor& whole, const ShardedTensor& parts);

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
