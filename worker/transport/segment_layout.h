#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/wire/shm_layout.h"

// What follows ShmHeader in the memory that the workers of one node share:
//
//   ShmHeader | SegmentControl | RankControl x local size | RankStaging x local size
//
// A byte that is not atomic is written by one rank and read by others only after they saw the flag
// that covers it.
namespace ddp {

inline constexpr std::size_t kLine = 128;  // Two cache lines: the prefetcher pulls pairs.
inline constexpr std::size_t kSlotBytes = 256u << 10;  // One chunk of one rank.
inline constexpr std::size_t kSlots = 4;               // Chunks in flight.
inline constexpr std::size_t kSmallBytes = 4096;  // Payload that fits into an operation's record.
inline constexpr std::size_t kRecordBytes = kLine;

// How far a rank has come. Numbers grow and wrap, and are never reset while the segment lives.
enum class Flag : unsigned {
  kEntry,    // Operations entered.
  kIn,       // Chunks copied into the rank's input slots.
  kReduced,  // Chunks whose inputs the rank, as owner of a slice, needs no longer.
  kReady,    // Chunks whose slice lies in the rank's result slots.
  kOut,      // Chunks that the rank has copied to its user.
};
inline constexpr std::size_t kFlags = 5;

struct alignas(kLine) FlagLine {
  std::atomic<std::uint32_t> value{0};
};

// A rank that sleeps sets `sleeping`, looks at the flags once more and waits for `bell` to change.
// Whoever changes a flag looks at `sleeping` afterwards. All four accesses are sequentially
// consistent, so one of the two sees the other.
struct alignas(kLine) Doorbell {
  std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> sleeping{0};
};

// Covered by kEntry. Two of them are enough: to enter operation n + 2 a rank has completed n + 1,
// for which every other rank had to be through with n.
struct alignas(kLine) OperationSlot {
  std::byte record[kRecordBytes];
  std::byte payload[kSmallBytes];
};

struct alignas(4096) RankControl {
  FlagLine flags[kFlags];
  Doorbell doorbell;
  OperationSlot operations[2];
};

struct alignas(4096) RankStaging {
  std::byte input[kSlots][kSlotBytes];
  std::byte result[kSlots][kSlotBytes];
};

struct alignas(4096) SegmentControl {
  std::atomic<std::int32_t> abort_code{
      0};  // Errc of the cause; 0: raised by the agent. Written before ShmHeader::abort.
};

constexpr std::size_t segment_bytes(int local_size) {
  return wire::kShmHeaderBytes + sizeof(SegmentControl) +
         static_cast<std::size_t>(local_size) * (sizeof(RankControl) + sizeof(RankStaging));
}
static_assert(segment_bytes(1) <= wire::shm_bytes(1));

}  // namespace ddp
