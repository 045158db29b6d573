#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "worker/collectives/operation.h"
#include "worker/collectives/types.h"

namespace ddp::runtime {

// Check the arguments of ProcessGroup's callers and turn them into operations. All throw
// std::invalid_argument, which names the operation, what is wrong and what is expected. size: of
// the group. rank: this rank.
namespace operations {

collectives::Operation all_reduce(Buffer in_out, ReduceOp op);
collectives::Operation broadcast(Buffer in_out, Rank root, int size);
collectives::Operation reduce(Buffer in_out, Rank root, ReduceOp op, int size);
collectives::Operation all_gather(Buffer in, Buffer out, int size);
collectives::Operation all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                                   Rank rank, int size);
collectives::Operation reduce_scatter(Buffer in, Buffer out, ReduceOp op, int size);
collectives::Operation gather(Buffer in, Buffer out, Rank root, Rank rank, int size);
collectives::Operation scatter(Buffer in, Buffer out, Rank root, Rank rank, int size);
collectives::Operation all_to_all(Buffer in, Buffer out, int size);
collectives::Operation all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                                   std::span<const std::size_t> receive_counts, int size);
collectives::Operation barrier();

// For all_reduce_coalesced: the type that all buffers share, and their total number of elements.
Buffer whole_of(std::span<const Buffer> parts);

}  // namespace operations
}  // namespace ddp::runtime
