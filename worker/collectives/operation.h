#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/collectives/types.h"

namespace ddp::collectives {

// At the deadline, a rank that waits for data cannot say who is missing, but a rank that waits for
// another to arrive can. So the former waits this much longer, to let the latter report first.
inline constexpr Duration kStallGrace{1000};

enum class OpKind : std::uint32_t {
  kAllReduce = 1,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
};

// What all ranks must agree on about a collective operation. Ranks compare it before any data
// moves: neighbours in memory through the node's segment, nodes through their links.
struct OpRecord {
  std::uint64_t sequence = 0;  // Operations of this group before it.
  OpKind kind = OpKind::kBarrier;
  std::uint32_t type = 0;  // DType
  std::uint32_t op = 0;    // ReduceOp::Kind; 0 where nothing is reduced.
  Rank root = -1;          // -1: no root.
  // Number of elements: of the buffer (all_reduce, broadcast, reduce), of all blocks together
  // (all_gather of unequal blocks), 0 (all_to_all of unequal blocks), else of one rank's block.
  std::uint64_t count = 0;
  std::uint64_t layout = 0;  // For unequal blocks: a digest of the list that all ranks must share.

  bool operator==(const OpRecord&) const = default;
};
static_assert(sizeof(OpRecord) == 40);

struct Operation {
  OpRecord record;
  Buffer in;  // Input; the same as `out` for in-place operations.
  Buffer out;
  double factor = 1.0;  // For this rank's input, with ReduceOp::kPremulSum.
  // Elements of each rank's block if blocks are unequal; else empty.
  std::vector<std::size_t> in_counts;
  std::vector<std::size_t> out_counts;
  // For an operation over several buffers: these are copied to `in`, and `out` is copied back.
  std::vector<Buffer> parts;
  std::shared_ptr<std::byte> packed;  // Owns `in` in that case.
  TimePoint deadline{};
  std::chrono::milliseconds timeout{0};  // What the deadline came from, for messages.
  TimePoint issued() const { return deadline - timeout; }
  std::uint64_t flight = 0;  // Its entry in the flight recorder; 0: none.

  bool uneven() const { return !in_counts.empty() || !out_counts.empty(); }
  DType type() const { return static_cast<DType>(record.type); }
  ReduceOp::Kind op() const { return static_cast<ReduceOp::Kind>(record.op); }
};

const char* name_of(OpKind kind);
// "all_reduce (sum) of 1000 f32", "broadcast of 5 i64 from rank 2", "gather of 5 u8 to rank 0",
// "barrier".
std::string describe(const OpRecord& record);

}  // namespace ddp::collectives
