#pragma once

#include <cstddef>
#include <memory_resource>
#include <vector>

#include "worker/collectives/entry.h"
#include "worker/collectives/node_gather.h"
#include "worker/collectives/tree_order.h"

namespace ddp {

// Operations whose inputs are so small that every rank gets all that it could need and computes its
// result by itself: inside a node the payloads that travel with the entry; from other nodes one
// block each, which the node's head (local rank 0) fetches into its result slots.
namespace small {

// What can become a result, and which ranks each part stands for. Kept from one operation to the
// next: operations this short would notice an allocation.
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

// Bytes that a rank shows, by the record alone. More than kSmallBytes: the operation is not small.
std::size_t payload_bytes(const OpRecord& record, int world_size);

// Whether the blocks of all nodes fit into the head's result slots.
bool fits(const OpRecord& record, const Topology& topology);

// By node, in the head's result slots: partial reductions, one for each subtree of the node's
// ranks, or the payloads of all its ranks; empty in a world of one node.
NodeGather::Blocks blocks(const OpRecord& record, Transport& transport,
                          std::pmr::memory_resource* memory);

// Head only, after the entry: fills its node's block.
void fill_own_block(const Operation& operation, Transport& transport, const Entry& entry,
                    const NodeGather::Blocks& blocks, Parts& parts);

// Once all is there.
void finish(const Operation& operation, Transport& transport, const Entry& entry,
            const NodeGather::Blocks& blocks, Parts& parts);

}  // namespace small
}  // namespace ddp
