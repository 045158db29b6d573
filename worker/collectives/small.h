#pragma once

#include <cstddef>
#include <memory_resource>
#include <vector>

#include "worker/collectives/entry.h"
#include "worker/collectives/node_gather.h"
#include "worker/collectives/tree_order.h"

namespace ddp::collectives {

// Operations whose inputs are so small that every rank gets all of them and computes its result
// alone. Inside a node, the payloads travel with the entry. From each other node comes one block,
// which the head (local rank 0) receives into its result slots.
namespace small {

// The sources of a reduction, and which ranks each stands for. Kept from one operation to the next,
// because an allocation would slow such short operations down.
struct Parts {
  std::vector<const std::byte*> sources;
  std::vector<RankRange> ranges;
  std::vector<double> factors;

  void clear() {
    sources.clear();
    ranges.clear();
    factors.clear();
  }
};

// Bytes of a rank's payload, from the record alone. More than kSmallBytes: not a small operation.
std::size_t payload_bytes(const OpRecord& record, int world_size);

// Whether the blocks of all nodes fit into the head's result slots.
bool fits(const OpRecord& record, const transport::Topology& topology);

// By node, in the head's result slots: partial reductions, one for each subtree of the node's
// ranks, or the payloads of all its ranks; empty in a world of one node.
NodeGather::Blocks blocks(const OpRecord& record, transport::Transport& transport,
                          std::pmr::memory_resource* memory);

// For the head, after the entry: fills its node's block.
void fill_own_block(const Operation& operation, transport::Transport& transport, const Entry& entry,
                    const NodeGather::Blocks& blocks, Parts& parts);

// Computes this rank's result, once all blocks have arrived.
void finish(const Operation& operation, transport::Transport& transport, const Entry& entry,
            const NodeGather::Blocks& blocks, Parts& parts);

}  // namespace small
}  // namespace ddp::collectives
