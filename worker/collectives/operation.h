#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/collectives/types.h"

namespace ddp {

// A rank that waits for data past the deadline cannot say who is missing; one that waits for
// another to arrive can. The former lets the latter speak first for so long.
inline constexpr Duration kStallGrace{1000};

enum class OpKind : std::uint32_t { kAllReduce = 1, kBroadcast, kAllGather, kBarrier };

// What all ranks must agree on about an operation. Ranks compare it before any data moves:
// neighbours in memory through the node's segment, nodes through their links.
struct OpRecord {
  std::uint64_t sequence = 0;  // Operations of this group before it.
  OpKind kind = OpKind::kBarrier;
  std::uint32_t type = 0;  // DType
  std::uint32_t op = 0;    // ReduceOp::Kind; 0 where nothing is reduced.
  Rank root = -1;          // Of a broadcast.
  std::uint64_t count = 0;

  bool operator==(const OpRecord&) const = default;
};
static_assert(sizeof(OpRecord) == 32);

struct Operation {
  OpRecord record;
  Buffer in;  // Input; the same as `out` for what works in place.
  Buffer out;
  TimePoint deadline{};
  std::chrono::milliseconds timeout{0};  // What the deadline came from, for messages.
};

const char* name_of(OpKind kind);
const char* name_of(DType type);
const char* name_of(ReduceOp op);
// "all_reduce (sum) of 1000 f32", "broadcast of 5 i64 from rank 2", "barrier".
std::string describe(const OpRecord& record);

}  // namespace ddp
