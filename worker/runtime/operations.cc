#include "worker/runtime/operations.h"

#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "worker/transport/segment_layout.h"

namespace ddp::runtime::operations {

using collectives::Operation;
using collectives::OpKind;

namespace {

// message: returns the text; called only if it is needed.
template <typename Message>
void require(bool condition, Message&& message) {
  if (!condition) throw std::invalid_argument(message());
}

void require_data(OpKind kind, const Buffer& buffer) {
  require(buffer.data != nullptr || buffer.count == 0, [&] {
    return fmt::format("{}: the buffer of {} elements has no address", name_of(kind), buffer.count);
  });
}

void require_reduction(OpKind kind, DType type, ReduceOp op) {
  if (valid(type, op.kind())) return;
  const bool bits =
      op.kind() == ReduceOp::kBand || op.kind() == ReduceOp::kBor || op.kind() == ReduceOp::kBxor;
  throw std::invalid_argument(
      fmt::format("{}: {} of {} is not defined; {}", name_of(kind), name_of(op), name_of(type),
                  bits ? "bits are combined in integers only"
                       : "an average of integers has no exact value; use a sum"));
}

void require_same_type(OpKind kind, const Buffer& in, const Buffer& out) {
  require(in.type == out.type, [&] {
    return fmt::format("{}: input of {} and output of {}", name_of(kind), name_of(in.type),
                       name_of(out.type));
  });
}

// `whole` must hold a block for each rank.
void require_blocks(OpKind kind, const char* side, std::size_t block, std::size_t whole, int size) {
  const std::size_t needed = block * static_cast<std::size_t>(size);
  require(whole == needed, [&] {
    return fmt::format("{}: {} elements from {} ranks need an {} of {} elements, not {}",
                       name_of(kind), block, size, side, needed, whole);
  });
}

void require_counts(OpKind kind, const char* side, std::span<const std::size_t> counts,
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

Operation make(OpKind kind, Buffer in, Buffer out, std::size_t count) {
  Operation operation;
  operation.record.kind = kind;
  operation.record.type = static_cast<std::uint32_t>(in.type);
  operation.record.count = count;
  operation.in = in;
  operation.out = out;
  return operation;
}

Operation in_place(OpKind kind, Buffer in_out) {
  require_data(kind, in_out);
  return make(kind, in_out, in_out, in_out.count);
}

Operation between(OpKind kind, Buffer in, Buffer out, std::size_t count) {
  require_data(kind, in);
  require_data(kind, out);
  require_same_type(kind, in, out);
  return make(kind, in, out, count);
}

Operation with_root(Operation operation, Rank root, int size) {
  require(root >= 0 && root < size, [&] {
    return fmt::format("{}: root {} is not in 0..{}", name_of(operation.record.kind), root,
                       size - 1);
  });
  operation.record.root = root;
  return operation;
}

Operation with_reduction(Operation operation, ReduceOp op) {
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

Operation all_reduce(Buffer in_out, ReduceOp op) {
  return with_reduction(in_place(OpKind::kAllReduce, in_out), op);
}

Operation broadcast(Buffer in_out, Rank root, int size) {
  return with_root(in_place(OpKind::kBroadcast, in_out), root, size);
}

Operation reduce(Buffer in_out, Rank root, ReduceOp op, int size) {
  return with_reduction(with_root(in_place(OpKind::kReduce, in_out), root, size), op);
}

Operation all_gather(Buffer in, Buffer out, int size) {
  Operation operation = between(OpKind::kAllGather, in, out, in.count);
  require_blocks(OpKind::kAllGather, "output", in.count, out.count, size);
  return operation;
}

Operation all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts, Rank rank,
                      int size) {
  Operation operation = between(OpKind::kAllGather, in, out, out.count);
  require_counts(OpKind::kAllGather, "output", counts, out, size);
  const std::size_t own = counts[static_cast<std::size_t>(rank)];
  require(own == in.count, [&] {
    return fmt::format("all_gather: rank {} provides {} elements, but the list says {}", rank,
                       in.count, own);
  });
  operation.record.layout = digest(counts);
  operation.out_counts.assign(counts.begin(), counts.end());
  return operation;
}

Operation reduce_scatter(Buffer in, Buffer out, ReduceOp op, int size) {
  Operation operation = between(OpKind::kReduceScatter, in, out, out.count);
  require_blocks(OpKind::kReduceScatter, "input", out.count, in.count, size);
  return with_reduction(std::move(operation), op);
}

Operation gather(Buffer in, Buffer out, Rank root, Rank rank, int size) {
  if (rank != root) out = {nullptr, 0, in.type};
  Operation operation = with_root(between(OpKind::kGather, in, out, in.count), root, size);
  if (rank == root) require_blocks(OpKind::kGather, "output", in.count, out.count, size);
  return operation;
}

Operation scatter(Buffer in, Buffer out, Rank root, Rank rank, int size) {
  if (rank != root) in = {nullptr, 0, out.type};
  Operation operation = with_root(between(OpKind::kScatter, in, out, out.count), root, size);
  if (rank == root) require_blocks(OpKind::kScatter, "input", out.count, in.count, size);
  return operation;
}

Operation all_to_all(Buffer in, Buffer out, int size) {
  const std::size_t block = in.count / static_cast<std::size_t>(size);
  Operation operation = between(OpKind::kAllToAll, in, out, block);
  require_blocks(OpKind::kAllToAll, "input", block, in.count, size);
  require_blocks(OpKind::kAllToAll, "output", block, out.count, size);
  return operation;
}

Operation all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                      std::span<const std::size_t> receive_counts, int size) {
  Operation operation = between(OpKind::kAllToAll, in, out, 0);
  require_counts(OpKind::kAllToAll, "send", send_counts, in, size);
  require_counts(OpKind::kAllToAll, "receive", receive_counts, out, size);
  constexpr std::size_t kMost = transport::kSmallBytes / sizeof(std::uint64_t);
  require(send_counts.size() <= kMost, [&] {
    return fmt::format(
        "all_to_all: the group has {} ranks, but at most {} can exchange unequal blocks; use send "
        "and recv instead",
        size, kMost);
  });
  operation.record.layout = 1;  // The lists differ from rank to rank.
  operation.in_counts.assign(send_counts.begin(), send_counts.end());
  operation.out_counts.assign(receive_counts.begin(), receive_counts.end());
  return operation;
}

Operation barrier() {
  return make(OpKind::kBarrier, {nullptr, 0, DType::kU8}, {nullptr, 0, DType::kU8}, 0);
}

Buffer whole_of(std::span<const Buffer> parts) {
  Buffer whole;
  if (!parts.empty()) whole.type = parts.front().type;
  for (const Buffer& part : parts) {
    require_data(OpKind::kAllReduce, part);
    require_same_type(OpKind::kAllReduce, parts.front(), part);
    whole.count += part.count;
  }
  return whole;
}

}  // namespace ddp::runtime::operations
