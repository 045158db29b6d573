#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/collectives/operation.h"
#include "worker/collectives/types.h"
#include "worker/nccl/cuda_api.h"
#include "worker/nccl/types.h"

namespace ddp {

enum class DeviceOpKind : std::uint32_t {
  kAllReduce = 1,
  kAllReduceCoalesced,
  kBroadcast,
  kReduce,
  kAllGather,
  kAllGatherV,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kBarrier,
  kSend,  // From here on: between two ranks, or a set of such transfers.
  kRecv,
  kBatch,
};

constexpr bool is_collective(DeviceOpKind kind) { return kind < DeviceOpKind::kSend; }

// What all ranks must agree on about a collective, and what messages say about any operation.
struct DeviceRecord {
  std::uint64_t sequence = 0;  // Operations that this rank has issued on the group before it.
  DeviceOpKind kind = DeviceOpKind::kBarrier;
  std::uint32_t type = 0;   // DType
  std::uint32_t op = 0;     // ReduceOp::Kind; 0 where nothing is reduced.
  Rank root = -1;           // Root, or the other rank of a send or receive.
  std::uint64_t count = 0;  // Elements of the input; 0 where ranks may differ.

  // The sequence is left aside: sends and receives count in it, and not every rank takes part in
  // them. Factors of a premultiplied sum may differ too.
  bool matches(const DeviceRecord& other) const {
    return kind == other.kind && type == other.type && op == other.op && root == other.root &&
           count == other.count;
  }
};
static_assert(sizeof(DeviceRecord) == 32);

struct DeviceOperation {
  DeviceRecord record;
  Buffer in;
  Buffer out;
  ReduceOp op;
  std::vector<Buffer> parts;        // What a coalesced all_reduce consists of.
  std::vector<Transfer> transfers;  // What gather, scatter, all_to_all, send, recv consist of.
  std::chrono::milliseconds timeout{0};
  TimePoint deadline{};         // Of completion.
  cuda::Event ready = nullptr;  // The caller's stream has produced the input.
  std::string tag;

  // "all_reduce #17 (bucket 3)", as the messages of host groups have it.
  std::string name() const;
};

const char* name_of(DeviceOpKind kind);
// "all_reduce (sum) of 1000 f32", "broadcast of 5 i64 from rank 2", "barrier".
std::string describe(const DeviceRecord& record);

}  // namespace ddp
