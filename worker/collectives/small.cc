#include "worker/collectives/small.h"

#include <array>
#include <cstring>

#include "worker/collectives/kernels.h"

namespace ddp::collectives::small {
namespace {

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

bool has_root(OpKind kind) { return kind == OpKind::kBroadcast || kind == OpKind::kScatter; }

std::size_t index(int number) { return static_cast<std::size_t>(number); }

RankRanges ranges_of(const transport::Topology& topology, int node) {
  return subtrees_of(topology.first(node), topology.first(node) + topology.local_size(node),
                     topology.world_size());
}

std::size_t block_bytes(const OpRecord& record, const transport::Topology& topology, int node) {
  const std::size_t payload = payload_bytes(record, topology.world_size());
  if (reduces(record.kind)) {
    const auto type = static_cast<DType>(record.type);
    const std::size_t count = payload / dtype_bytes(type);
    return ranges_of(topology, node).size() * count * dtype_bytes(accumulator_of(type));
  }
  if (has_root(record.kind)) return topology.node_of(record.root) == node ? payload : 0;
  return index(topology.local_size(node)) * payload;
}

void copy(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
}

// Where a local rank's input can be read. This rank reads its own input from the user's buffer, so
// that in a node of two ranks each slot has one reader.
const std::byte* input_of(const Operation& operation, const transport::Topology& topology,
                          const Entry& entry, int local) {
  if (local == topology.local_rank() && topology.nodes() == 1)
    return static_cast<const std::byte*>(operation.in.data);
  return entry.payload(local);
}

// Where a rank's payload can be read, for operations that do not reduce.
const std::byte* payload_of(const Operation& operation, transport::Transport& transport,
                            const Entry& entry, const NodeGather::Blocks& blocks, Rank rank) {
  const transport::Topology& topology = transport.topology();
  if (topology.nodes() == 1) return input_of(operation, topology, entry, rank);
  const int node = topology.node_of(rank);
  const std::byte* block = blocks[index(node)].data;
  if (has_root(operation.record.kind)) return block;
  return block + index(rank - topology.first(node)) *
                     payload_bytes(operation.record, topology.world_size());
}

// Adds the payloads of the local ranks in `range` as sources of one reduction.
void add_local(const Operation& operation, const transport::Topology& topology, const Entry& entry,
               RankRange range, std::size_t offset, Parts& parts) {
  for (Rank rank = range.begin; rank < range.end; ++rank) {
    const int local = rank - topology.first(topology.node());
    parts.sources.push_back(input_of(operation, topology, entry, local) + offset);
    parts.ranges.push_back({rank, rank + 1});
    if (operation.op() == ReduceOp::kPremulSum) parts.factors.push_back(entry.offer(local).factor);
  }
}

// Computes elements [begin, begin + out.count) of the reduction over all ranks.
void reduce_all(const Operation& operation, transport::Transport& transport, const Entry& entry,
                const NodeGather::Blocks& blocks, Parts& parts, std::size_t begin, Buffer out) {
  const transport::Topology& topology = transport.topology();
  const DType type = operation.type();
  parts.clear();
  Reduction reduction{type, type, operation.op(), topology.world_size(), {}};
  if (topology.nodes() == 1) {
    add_local(operation, topology, entry, {0, topology.world_size()}, begin * dtype_bytes(type),
              parts);
    reduction.factors = parts.factors;
  } else {
    reduction.in = accumulator_of(type);
    const std::size_t element = dtype_bytes(reduction.in);
    const std::size_t count =
        payload_bytes(operation.record, topology.world_size()) / dtype_bytes(type);
    for (int node = 0; node < topology.nodes(); ++node) {
      const std::byte* part = blocks[index(node)].data;
      for (const RankRange range : ranges_of(topology, node)) {
        parts.sources.push_back(part + begin * element);
        parts.ranges.push_back(range);
        part += count * element;
      }
    }
  }
  reduce(reduction, parts.ranges, parts.sources, std::array{static_cast<std::byte*>(out.data)},
         out.count);
}

}  // namespace

std::size_t payload_bytes(const OpRecord& record, int world_size) {
  const std::size_t bytes = record.count * dtype_bytes(static_cast<DType>(record.type));
  switch (record.kind) {
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
    case OpKind::kAllToAll:
      return bytes * index(world_size);
    case OpKind::kBarrier:
      return 0;
    default:
      return bytes;
  }
}

bool fits(const OpRecord& record, const transport::Topology& topology) {
  if (topology.nodes() == 1) return true;
  std::size_t total = 0;
  for (int node = 0; node < topology.nodes(); ++node) total += block_bytes(record, topology, node);
  return total <= transport::kSlots * transport::kSlotBytes;
}

NodeGather::Blocks blocks(const OpRecord& record, transport::Transport& transport,
                          std::pmr::memory_resource* memory) {
  const transport::Topology& topology = transport.topology();
  NodeGather::Blocks blocks(memory);
  if (topology.nodes() == 1) return blocks;
  std::byte* data = transport.segment().result(0, 0);
  for (int node = 0; node < topology.nodes(); ++node) {
    blocks.push_back({data, block_bytes(record, topology, node)});
    data += blocks.back().bytes;
  }
  return blocks;
}

void fill_own_block(const Operation& operation, transport::Transport& transport, const Entry& entry,
                    const NodeGather::Blocks& blocks, Parts& parts) {
  const transport::Topology& topology = transport.topology();
  const int node = topology.node();
  const std::size_t payload = payload_bytes(operation.record, topology.world_size());
  std::byte* block = blocks[index(node)].data;
  if (payload == 0) return;
  if (has_root(operation.record.kind)) {
    const int root = operation.record.root - topology.first(node);
    if (topology.node_of(operation.record.root) == node) copy(block, entry.payload(root), payload);
    return;
  }
  if (!reduces(operation.record.kind)) {
    for (int local = 0; local < topology.local_size(); ++local) {
      copy(block + index(local) * payload, entry.payload(local), payload);
    }
    return;
  }
  const DType type = operation.type();
  const std::size_t count = payload / dtype_bytes(type);
  for (const RankRange range : ranges_of(topology, node)) {
    parts.clear();
    add_local(operation, topology, entry, range, 0, parts);
    const Reduction reduction{type, accumulator_of(type), operation.op(), 0, parts.factors};
    reduce(reduction, parts.ranges, parts.sources, std::array{block}, count);
    block += count * dtype_bytes(accumulator_of(type));
  }
}

void finish(const Operation& operation, transport::Transport& transport, const Entry& entry,
            const NodeGather::Blocks& blocks, Parts& parts) {
  const transport::Topology& topology = transport.topology();
  const Rank self = topology.rank();
  const Rank root = operation.record.root;
  const int world = topology.world_size();
  const std::size_t bytes = operation.record.count * dtype_bytes(operation.type());
  auto* out = static_cast<std::byte*>(operation.out.data);
  const auto payload = [&](Rank rank) {
    return payload_of(operation, transport, entry, blocks, rank);
  };
  if (bytes == 0) return;
  switch (operation.record.kind) {
    case OpKind::kAllReduce:
      reduce_all(operation, transport, entry, blocks, parts, 0, operation.out);
      break;
    case OpKind::kReduce:
      if (self == root) reduce_all(operation, transport, entry, blocks, parts, 0, operation.out);
      break;
    case OpKind::kReduceScatter:
      reduce_all(operation, transport, entry, blocks, parts, index(self) * operation.record.count,
                 operation.out);
      break;
    case OpKind::kBroadcast:
      if (self != root) copy(out, payload(root), bytes);
      break;
    case OpKind::kScatter:
      copy(out, payload(root) + index(self) * bytes, bytes);
      break;
    case OpKind::kGather:
      if (self != root) break;
      [[fallthrough]];
    case OpKind::kAllGather:
      for (Rank rank = 0; rank < world; ++rank) {
        copy(out + index(rank) * bytes, payload(rank), bytes);
      }
      break;
    case OpKind::kAllToAll:
      for (Rank rank = 0; rank < world; ++rank) {
        copy(out + index(rank) * bytes, payload(rank) + index(self) * bytes, bytes);
      }
      break;
    default:
      break;
  }
}

}  // namespace ddp::collectives::small
