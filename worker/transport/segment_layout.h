#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <pthread.h>

#include "common/wire/shm_layout.h"

// The memory that the workers of one node share:
//
//   ShmHeader | region of local rank 0 | region of local rank 1 | ...
//
// and a region is a RegionHead (flags, doorbell, operation records, staging) with the rank's arena
// behind it, from which buffers, and the regions of sub-groups, are allocated.
//
// A sub-group has a RegionHead of its own in the arena of each member. It uses the flags, operation
// records, pairs and staging of it.
//
// A byte that is not atomic is written by one rank. Others read it only after they have seen the
// flag that covers it.
namespace ddp::transport {

inline constexpr std::size_t kLine = 128;  // Two cache lines: the prefetcher pulls pairs.
inline constexpr std::size_t kSlotBytes = 256u << 10;  // One chunk of one rank.
// Chunks in flight. Connections share the network unequally, and each chunk needs all of them: with
// few large chunks the fast connections idle while the slow ones catch up.
inline constexpr std::size_t kSlots = 8;
inline constexpr std::size_t kSmallBytes = 4096;  // Payload that fits into an operation's record.
inline constexpr std::size_t kRecordBytes = kLine;
inline constexpr std::size_t kPairRanks = 256;  // Ranks of a node that can exchange messages.

// A rank's progress. The numbers grow and wrap, and are never reset while anybody reads them.
enum class Flag : unsigned {
  kEntry,    // Operations entered.
  kGroup,    // Operations for which the rank, as head of a group of neighbours, saw all of them.
  kNodes,    // Operations for which the rank, as its node's head, has met the other nodes.
  kDone,     // Operations after which the rank touches no memory of others any more.
  kIn,       // Chunks copied into the rank's input slots.
  kReduced,  // Between nodes: chunks that the rank, as owner of a slice, has passed on.
  kReady,    // Chunks whose slice the rank, as its owner, has put where the others find it.
  kOut,      // Chunks that the rank has taken from the others' slots.
  kLeft,     // 1 once the rank has left the group for good; only in a head that one group uses.
};
inline constexpr std::size_t kFlags = 9;

struct alignas(kLine) FlagLine {
  std::atomic<std::uint32_t> value{0};
};

// A thread that sleeps raises `sleepers`, looks at the flags once more and waits for `bell` to
// change. Whoever changes a flag looks at `sleepers` afterwards. All four accesses are sequentially
// consistent, so one of the two sees the other. All groups of a rank share its doorbell.
struct alignas(kLine) Doorbell {
  std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> sleepers{0};
};

// Covered by kEntry. Two are enough: a rank that enters operation n + 2 has completed n + 1, for
// which every other rank had to finish n.
struct alignas(kLine) OperationSlot {
  std::byte record[kRecordBytes];
  std::byte payload[kSmallBytes];
};

// Whether the rank is present and alive; see lifeline.h.
struct alignas(kLine) LifeLine {
  pthread_mutex_t mutex;  // Robust; held by a thread of the rank while it is there.
  std::atomic<std::uint32_t> prepared{0};  // The mutex is initialised.
  std::atomic<std::uint32_t> presence{0};  // Odd while the rank is present; grows.
  std::atomic<std::uint32_t> beats{0};     // Grows while the rank's process runs.
};

// Where a rank's rings to its neighbours (worker/transport/pair_ring.h) lie. Groups that use the
// same memory one after another have different generations; a reader ignores other generations.
struct alignas(kLine) PairTable {
  std::atomic<std::uint32_t> generation{0};  // Groups of this rank so far.
  // By the reader's number in the group: offset in the writer's region | generation % 2^12. An
  // offset is a multiple of 4096; 0: no ring.
  std::atomic<std::uint64_t> rings[kPairRanks];
};

struct alignas(4096) RankControl {
  FlagLine flags[kFlags];
  // Of a sub-group: how many members on the node, the owner included, no longer read this head
  // (sub_group_head.h).
  FlagLine departed;
  Doorbell doorbell;
  LifeLine lifeline;
  OperationSlot operations[2];
  PairTable pairs;
};

// Slots are no power of two apart either (see kShmBytesPerWorker).
inline constexpr std::size_t kSlotStride = kSlotBytes + 5 * 4096;

struct alignas(4096) RankStaging {
  std::byte input[kSlots][kSlotStride];
  std::byte result[kSlots][kSlotStride];
};

struct alignas(4096) RegionHead {
  std::byte flight[wire::kFlightBytes];  // common/wire/flight_ring.h
  RankControl control;
  RankStaging staging;
};

inline constexpr std::size_t kArenaOffset = sizeof(RegionHead);  // From the beginning of a region.

}  // namespace ddp::transport
