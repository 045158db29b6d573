#pragma once

#include <cstddef>
#include <vector>

#include "worker/collectives/entry.h"
#include "worker/collectives/node_gather.h"
#include "worker/collectives/tree_order.h"

namespace ddp {

// Operations whose inputs are so small that every rank gets all that it could need and computes its
// result by itself: inside a node the payloads that travel with the entry; from other nodes one
// block each, which the node's head (local rank 0) fetches into its result slots.
namespace small {

// Bytes that a rank shows, by the record alone. More than kSmallBytes: the operation is not small.
std::size_t payload_bytes(const OpRecord& record, int world_size);

// Whether the blocks of all nodes fit into the head's result slots.
bool fits(const OpRecord& record, const Topology& topology);

// By node, in the head's result slots: partial reductions, one for each subtree of the node's
// ranks, or the payloads of all its ranks; empty in a world of one node.
std::vector<NodeGather::Block> blocks(const OpRecord& record, Transport& transport);

// Head only, after the entry: fills its node's block.
void fill_own_block(const Operation& operation, Transport& transport, const Entry& entry,
                    const std::vector<NodeGather::Block>& blocks);

// Once all is there.
void finish(const Operation& operation, Transport& transport, const Entry& entry,
            const std::vector<NodeGather::Block>& blocks);

}  // namespace small
}  // namespace ddp
