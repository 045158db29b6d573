#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "worker/nccl/argument_checks.h"
#include "worker/nccl/nccl_engine.h"
#include "worker/nccl/nccl_group.h"

// NcclGroup's operations. Each checks its arguments, describes the call and gives it to the engine.
namespace ddp {

using nccl::DeviceOperation;
using nccl::DeviceOpKind;
using nccl::require;
using nccl::require_count;
using nccl::require_data;
using nccl::require_rank;
using nccl::require_reduction;
using nccl::require_same_type;

namespace {

std::byte* address(const Buffer& buffer, std::size_t element) {
  return static_cast<std::byte*>(buffer.data) + element * dtype_bytes(buffer.type);
}

std::size_t sum_of(std::span<const std::size_t> counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

DeviceOperation operation_of(DeviceOpKind kind, const Buffer& in, const Buffer& out) {
  DeviceOperation operation;
  operation.kind = kind;
  operation.in = in;
  operation.out = out;
  return operation;
}

DeviceOperation in_place(DeviceOpKind kind, const Buffer& in_out) {
  require_data(kind, in_out);
  return operation_of(kind, in_out, in_out);
}

DeviceOperation between(DeviceOpKind kind, const Buffer& in, const Buffer& out) {
  require_data(kind, in);
  require_data(kind, out);
  require_same_type(kind, in, out);
  return operation_of(kind, in, out);
}

DeviceOperation with_reduction(DeviceOperation operation, ReduceOp op) {
  require_reduction(operation.kind, operation.in.type, op);
  operation.op = op;
  return operation;
}

// peer: the root, or the other rank.
DeviceOperation with_peer(DeviceOperation operation, Rank peer, int size) {
  require_rank(operation.kind, peer, size);
  operation.root = peer;
  return operation;
}

void add_transfer(DeviceOperation& operation, Transfer::Direction direction, Rank peer,
                  const Buffer& whole, std::size_t begin, std::size_t count) {
  if (count == 0) return;  // The other side skips it, too.
  operation.transfers.push_back({direction, peer, {address(whole, begin), count, whole.type}});
}

// The part that rank `own` sends to itself; NCCL copies it if both directions are in one group.
void add_own_part(DeviceOperation& operation, Rank own, const Buffer& in, std::size_t in_begin,
                  const Buffer& out, std::size_t out_begin, std::size_t count) {
  if (address(in, in_begin) == address(out, out_begin)) return;
  add_transfer(operation, Transfer::Direction::kSend, own, in, in_begin, count);
  add_transfer(operation, Transfer::Direction::kRecv, own, out, out_begin, count);
}

DeviceOperation single_transfer(Transfer::Direction direction, Rank peer, const Buffer& buffer,
                                const NcclGroupOptions& group) {
  const bool sends = direction == Transfer::Direction::kSend;
  DeviceOperation operation = with_peer(
      in_place(sends ? DeviceOpKind::kSend : DeviceOpKind::kRecv, buffer), peer, group.size);
  require(peer != group.rank,
          fmt::format("{}: the {} is this rank itself; use batch() with both directions",
                      name_of(operation.kind), sends ? "destination" : "source"));
  add_transfer(operation, direction, peer, buffer, 0, buffer.count);
  return operation;
}

}  // namespace

WorkPtr NcclGroup::all_reduce(Buffer in_out, ReduceOp op, OpOptions options) {
  return issue(with_reduction(in_place(DeviceOpKind::kAllReduce, in_out), op), std::move(options));
}

WorkPtr NcclGroup::all_reduce_coalesced(std::span<const Buffer> in_out, ReduceOp op,
                                        OpOptions options) {
  const auto kind = DeviceOpKind::kAllReduceCoalesced;
  require(!in_out.empty(), "all_reduce_coalesced: the list of buffers is empty");
  DeviceOperation operation = operation_of(kind, in_out.front(), in_out.front());
  for (const Buffer& buffer : in_out) {
    require_data(kind, buffer);
    require_same_type(kind, in_out.front(), buffer);
    if (buffer.count > 0) operation.parts.push_back(buffer);
  }
  require_reduction(kind, in_out.front().type, op);
  operation.op = op;
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::broadcast(Buffer in_out, Rank root, OpOptions options) {
  return issue(with_peer(in_place(DeviceOpKind::kBroadcast, in_out), root, options_.size),
               std::move(options));
}

WorkPtr NcclGroup::reduce(Buffer in_out, Rank root, ReduceOp op, OpOptions options) {
  DeviceOperation operation =
      with_peer(in_place(DeviceOpKind::kReduce, in_out), root, options_.size);
  return issue(with_reduction(std::move(operation), op), std::move(options));
}

WorkPtr NcclGroup::all_gather(Buffer in, Buffer out, OpOptions options) {
  DeviceOperation operation = between(DeviceOpKind::kAllGather, in, out);
  require_count(operation.kind, "output", out.count,
                in.count * static_cast<std::size_t>(options_.size));
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::reduce_scatter(Buffer in, Buffer out, ReduceOp op, OpOptions options) {
  DeviceOperation operation = between(DeviceOpKind::kReduceScatter, in, out);
  require_count(operation.kind, "input", in.count,
                out.count * static_cast<std::size_t>(options_.size));
  return issue(with_reduction(std::move(operation), op), std::move(options));
}

WorkPtr NcclGroup::barrier(OpOptions options) {
  return issue(operation_of(DeviceOpKind::kBarrier, {nullptr, 0, DType::kU8}, {}),
               std::move(options));
}

// ---- Operations that consist of sends and receives.

WorkPtr NcclGroup::all_gatherv(Buffer in, Buffer out, std::span<const std::size_t> counts,
                               OpOptions options) {
  DeviceOperation operation = between(DeviceOpKind::kAllGatherV, in, out);
  require(counts.size() == static_cast<std::size_t>(options_.size),
          fmt::format("all_gatherv: {} counts for {} ranks", counts.size(), options_.size));
  require_count(operation.kind, "input", in.count, counts[static_cast<std::size_t>(options_.rank)]);
  require_count(operation.kind, "output", out.count, sum_of(counts));
  std::size_t begin = 0;
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t count = counts[static_cast<std::size_t>(peer)];
    if (peer == options_.rank) {
      add_own_part(operation, options_.rank, in, 0, out, begin, count);
    } else {
      add_transfer(operation, Transfer::Direction::kSend, peer, in, 0, in.count);
      add_transfer(operation, Transfer::Direction::kRecv, peer, out, begin, count);
    }
    begin += count;
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::gather(Buffer in, Buffer out, Rank root, OpOptions options) {
  const auto kind = DeviceOpKind::kGather;
  require_data(kind, in);
  DeviceOperation operation = with_peer(operation_of(kind, in, out), root, options_.size);
  if (options_.rank != root) {
    add_transfer(operation, Transfer::Direction::kSend, root, in, 0, in.count);
    return issue(std::move(operation), std::move(options));
  }
  require_data(kind, out);
  require_same_type(kind, in, out);
  require_count(kind, "output", out.count, in.count * static_cast<std::size_t>(options_.size));
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t begin = static_cast<std::size_t>(peer) * in.count;
    if (peer == root) {
      add_own_part(operation, options_.rank, in, 0, out, begin, in.count);
    } else {
      add_transfer(operation, Transfer::Direction::kRecv, peer, out, begin, in.count);
    }
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::scatter(Buffer in, Buffer out, Rank root, OpOptions options) {
  const auto kind = DeviceOpKind::kScatter;  // Every rank knows its output.
  DeviceOperation operation = with_peer(in_place(kind, out), root, options_.size);
  if (options_.rank != root) {
    add_transfer(operation, Transfer::Direction::kRecv, root, out, 0, out.count);
    return issue(std::move(operation), std::move(options));
  }
  require_data(kind, in);
  require_same_type(kind, in, out);
  require_count(kind, "input", in.count, out.count * static_cast<std::size_t>(options_.size));
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t begin = static_cast<std::size_t>(peer) * out.count;
    if (peer == root) {
      add_own_part(operation, options_.rank, in, begin, out, 0, out.count);
    } else {
      add_transfer(operation, Transfer::Direction::kSend, peer, in, begin, out.count);
    }
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::all_to_all(Buffer in, Buffer out, OpOptions options) {
  DeviceOperation operation = between(DeviceOpKind::kAllToAll, in, out);
  require_count(operation.kind, "output", out.count, in.count);
  const auto size = static_cast<std::size_t>(options_.size);
  require(in.count % size == 0,
          fmt::format("all_to_all: {} elements cannot be divided equally among {} ranks", in.count,
                      options_.size));
  require(in.data != out.data || in.count == 0, "all_to_all: input and output are the same memory");
  const std::size_t part = in.count / size;
  for (Rank peer = 0; peer < options_.size; ++peer) {
    const std::size_t begin = static_cast<std::size_t>(peer) * part;
    add_transfer(operation, Transfer::Direction::kSend, peer, in, begin, part);
    add_transfer(operation, Transfer::Direction::kRecv, peer, out, begin, part);
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::all_to_allv(Buffer in, std::span<const std::size_t> send_counts, Buffer out,
                               std::span<const std::size_t> receive_counts, OpOptions options) {
  DeviceOperation operation = between(DeviceOpKind::kAllToAllV, in, out);
  const auto size = static_cast<std::size_t>(options_.size);
  require(send_counts.size() == size && receive_counts.size() == size,
          fmt::format("all_to_allv: {} and {} counts for {} ranks", send_counts.size(),
                      receive_counts.size(), size));
  require_count(operation.kind, "input", in.count, sum_of(send_counts));
  require_count(operation.kind, "output", out.count, sum_of(receive_counts));
  const auto own = static_cast<std::size_t>(options_.rank);
  require(send_counts[own] == receive_counts[own],
          fmt::format("all_to_allv: rank {} sends itself {} elements and receives {}",
                      options_.rank, send_counts[own], receive_counts[own]));
  require(in.data != out.data || in.count == 0,
          "all_to_allv: input and output are the same memory");
  std::size_t in_begin = 0;
  std::size_t out_begin = 0;
  for (std::size_t peer = 0; peer < size; ++peer) {
    const Rank rank = static_cast<Rank>(peer);
    add_transfer(operation, Transfer::Direction::kSend, rank, in, in_begin, send_counts[peer]);
    add_transfer(operation, Transfer::Direction::kRecv, rank, out, out_begin, receive_counts[peer]);
    in_begin += send_counts[peer];
    out_begin += receive_counts[peer];
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::send(Buffer buffer, Rank to, std::uint32_t /*tag*/, OpOptions options) {
  return issue(single_transfer(Transfer::Direction::kSend, to, buffer, options_),
               std::move(options));
}

WorkPtr NcclGroup::recv(Buffer buffer, Rank from, std::uint32_t /*tag*/, OpOptions options) {
  return issue(single_transfer(Transfer::Direction::kRecv, from, buffer, options_),
               std::move(options));
}

WorkPtr NcclGroup::batch(std::vector<Transfer> transfers, OpOptions options) {
  const auto kind = DeviceOpKind::kBatch;
  DeviceOperation operation = operation_of(kind, {nullptr, 0, DType::kU8}, {});
  for (const Transfer& transfer : transfers) {
    require_data(kind, transfer.buffer);
    require_rank(kind, transfer.peer, options_.size);
    add_transfer(operation, transfer.direction, transfer.peer, transfer.buffer, 0,
                 transfer.buffer.count);
  }
  return issue(std::move(operation), std::move(options));
}

WorkPtr NcclGroup::issue(DeviceOperation operation, OpOptions options) {
  const char* kind = name_of(operation.kind);
  require(options.timeout.count() >= 0,
          fmt::format("{}: the timeout is {} ms, but must not be negative", kind,
                      options.timeout.count()));
  operation.timeout = std::min<Duration>(
      options.timeout.count() > 0 ? options.timeout : options_.timeout, nccl::kLongestTimeout);
  operation.deadline = Clock::now() + operation.timeout;
  operation.tag = options.tag.str();
  const cuda::Stream stream = options_.current_stream ? options_.current_stream() : nullptr;
  WorkPtr work = engine_->issue(std::move(operation), stream, std::move(options.on_done));
  if (options.synchronous) work->wait();
  return work;
}

}  // namespace ddp
