#include "worker/runtime/operations.h"

#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "worker/transport/segment_layout.h"

namespace ddp::runtime::operations {
namespace {

// message: returns the text; called only if it is needed.
template <typename Message>
void require(bool condition, Message&& message) {
  if (!condition) throw std::invalid_argument(message());
}

void require_data(collectives::OpKind kind, const Buffer& buffer) {
  require(buffer.data != nullptr || buffer.count == 0, [&] {
    return fmt::format("{}: the buffer of {} elements has no address", name_of(kind), buffer.count);
  });
}

void require_root(collectives::OpKind kind, Rank root, int size) {
  require(root >= 0 && root < size, [&] {
    return fmt::format("{}: root {} is not in 0..{}", name_of(kind), root, size - 1);
  });
}

void require_reduction(collectives::OpKind kind, DType type, ReduceOp op) {
  if (valid(type, op.kind())) return;
  const bool bits =
      op.kind() == ReduceOp::kBand || op.kind() == ReduceOp::kBor || op.kind() == ReduceOp::kBxor;
  throw std::invalid_argument(
      fmt::format("{}: {} of {} is not defined; {}", name_of(kind), name_of(op), name_of(type),
                  bits ? "bits are combined in integers only"
                       : "an average of integers has no exact value; use a sum"));
}

void require_same_type(collectives::OpKind kind, const Buffer& in, const Buffer& out) {
  require(in.type == out.type, [&] {
    return fmt::format("{}: input of {} and output of {}", name_of(kind), name_of(in.type),
                       name_of(out.type));
  });
}

// `whole` must hold a block for each rank.
void require_blocks(collectives::OpKind kind, const char* side, std::size_t block,
                    std::size_t whole, int size) {
  const std::size_t needed = block * static_cast<std::size_t>(size);
  require(whole == needed, [&] {
    return fmt::format("{}: {} elements from {} ranks need an {} of {} elements, not {}",
                       name_of(kind), block, size, side, needed, whole);
  });
}

void require_counts(collectives::OpKind kind, const char* side, std::span<const std::size_t> counts,
                    const Buffer& buffer, int size) {
  require(counts.size() == static_cast<std::size_t>(size), [&] {
    return fmt::format("{}: {} {} counts for {} ranks", name_of(kind), counts.size(), side, size);
  });
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  require(total == buffer.count, [&] {
    return fmt::format("{}: the {} counts add up to {}, but the buffer has {} elements",
                       name_of(kind), side, total, buffer.count);
  });
}

collectives::Operation make(collectives::OpKind kind, Buffer in, Buffer out, std::size_t count,
                            DType type) {
  collectives::Operation operation;
  operation.record.kind = kind;
  operation.record.type = static_cast<std::uint32_t>(type);
  operation.record.count = count;
  operation.in = in;
  operation.out = out;
  return operation;
}

collectives::Operation with_reduction(collectives::Operation operation, ReduceOp op) {
  require_reduction(operation.record.kind, operation.type(), op);
  operation.record.op = op.kind();
  operation.factor = op.factor();
  return operation;
}

// FNV-1a over the counts.
std::uint64_t digest(std::span<const std::size_t> counts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::size_t count : counts) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ ((count >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  return hash | 1;  // 0 stands for equal blocks.
}

}  // namespace

collectives::Operation all_reduce(Buffer in_out, ReduceOp op) {
  require_data(collectives::OpKind::kAllReduce, in_out);
  return with_reduction(
      make(collectives::OpKind::kAllReduce, in_out, in_out, in_out.count, in_out.type), op);
}

collectives::Operation broadcast(Buffer in_out, Rank root, int size) {
  require_data(collectives::OpKind::kBroadcast, in_out);
  require_root(collectives::OpKind::kBroadcast, root, size);
  collectives::Operation operation =
      make(collectives::OpKind::kBroadcast, in_out, in_out, in_out.count, in_out.type);
  operation.record.root = root;
  return operation;
}

collectives::Operation reduce(Buffer in_out, Rank root, ReduceOp op, int size) {
  require_data(collectives::OpKind::kReduce, in_out);
  require_root(collectives::OpKind::kReduce, root, size);
  collectives::Operation operation =
      make(collectives::OpKind::kReduce, in_out, in_out, in_out.count, in_out.type);
  operation.record.root = root;
  return with_reduction(std::move(operation), op);
}

collectives::Operation all_gather(Buffer in, Buffer out, int size) {
  require_data(collectives::OpKind::kAllGather, in);
  require_data(collectives::OpKind::kAllGather, out);
  require_same_type(collectives::OpKind::kAllGather, in, out);
  require_blocks(collectives::OpKind::kAllGather, "output", in.count, out.count, size);
  return make(collectives::OpKind::kAllGather, in, out, in.count, in.type);
}

collectives::Operation all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                                   Rank rank, int size) {
  require_data(collectives::OpKind::kAllGather, in);
  require_data(collectives::OpKind::kAllGather, out);
  require_same_type(collectives::OpKind::kAllGather, in, out);
  require_counts(collectives::OpKind::kAllGather, "output", counts, out, size);
  const std::size_t own = counts[static_cast<std::size_t>(rank)];
  require(own == in.count, [&] {
    return fmt::format("all_gather: rank {} provides {} elements, but the list says {}", rank,
                       in.count, own);
  });
  collectives::Operation operation =
      make(collectives::OpKind::kAllGather, in, out, out.count, in.type);
  operation.record.layout = digest(counts);
  operation.out_counts.assign(counts.begin(), counts.end());
  return operation;
}

collectives::Operation reduce_scatter(Buffer in, Buffer out, ReduceOp op, int size) {
  require_data(collectives::OpKind::kReduceScatter, in);
  require_data(collectives::OpKind::kReduceScatter, out);
  require_same_type(collectives::OpKind::kReduceScatter, in, out);
  require_blocks(collectives::OpKind::kReduceScatter, "input", out.count, in.count, size);
  return with_reduction(make(collectives::OpKind::kReduceScatter, in, out, out.count, in.type), op);
}

collectives::Operation gather(Buffer in, Buffer out, Rank root, Rank rank, int size) {
  require_data(collectives::OpKind::kGather, in);
  require_root(collectives::OpKind::kGather, root, size);
  if (rank == root) {
    require_data(collectives::OpKind::kGather, out);
    require_same_type(collectives::OpKind::kGather, in, out);
    require_blocks(collectives::OpKind::kGather, "output", in.count, out.count, size);
  }
  collectives::Operation operation =
      make(collectives::OpKind::kGather, in, rank == root ? out : Buffer{nullptr, 0, in.type},
           in.count, in.type);
  operation.record.root = root;
  return operation;
}

collectives::Operation scatter(Buffer in, Buffer out, Rank root, Rank rank, int size) {
  require_data(collectives::OpKind::kScatter, out);
  require_root(collectives::OpKind::kScatter, root, size);
  if (rank == root) {
    require_data(collectives::OpKind::kScatter, in);
    require_same_type(collectives::OpKind::kScatter, in, out);
    require_blocks(collectives::OpKind::kScatter, "input", out.count, in.count, size);
  }
  collectives::Operation operation =
      make(collectives::OpKind::kScatter, rank == root ? in : Buffer{nullptr, 0, out.type}, out,
           out.count, out.type);
  operation.record.root = root;
  return operation;
}

collectives::Operation all_to_all(Buffer in, Buffer out, int size) {
  require_data(collectives::OpKind::kAllToAll, in);
  require_data(collectives::OpKind::kAllToAll, out);
  require_same_type(collectives::OpKind::kAllToAll, in, out);
  const std::size_t block = in.count / static_cast<std::size_t>(size);
  require_blocks(collectives::OpKind::kAllToAll, "input", block, in.count, size);
  require_blocks(collectives::OpKind::kAllToAll, "output", block, out.count, size);
  return make(collectives::OpKind::kAllToAll, in, out, block, in.type);
}

collectives::Operation all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                                   std::span<const std::size_t> receive_counts, int size) {
  require_data(collectives::OpKind::kAllToAll, in);
  require_data(collectives::OpKind::kAllToAll, out);
  require_same_type(collectives::OpKind::kAllToAll, in, out);
  require_counts(collectives::OpKind::kAllToAll, "send", send_counts, in, size);
  require_counts(collectives::OpKind::kAllToAll, "receive", receive_counts, out, size);
  constexpr std::size_t kMost = transport::kSmallBytes / sizeof(std::uint64_t);
  require(send_counts.size() <= kMost, [&] {
    return fmt::format(
        "all_to_all: the group has {} ranks, but at most {} can exchange unequal blocks; use send "
        "and recv instead",
        size, kMost);
  });
  collectives::Operation operation = make(collectives::OpKind::kAllToAll, in, out, 0, in.type);
  operation.record.layout = 1;  // The lists differ from rank to rank.
  operation.in_counts.assign(send_counts.begin(), send_counts.end());
  operation.out_counts.assign(receive_counts.begin(), receive_counts.end());
  return operation;
}

collectives::Operation barrier() {
  return make(collectives::OpKind::kBarrier, {nullptr, 0, DType::kU8}, {nullptr, 0, DType::kU8}, 0,
              DType::kU8);
}

Buffer whole_of(std::span<const Buffer> parts) {
  Buffer whole;
  if (!parts.empty()) whole.type = parts.front().type;
  for (const Buffer& part : parts) {
    require_data(collectives::OpKind::kAllReduce, part);
    require_same_type(collectives::OpKind::kAllReduce, parts.front(), part);
    whole.count += part.count;
  }
  return whole;
}

}  // namespace ddp::runtime::operations
