#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"

// The memory that the workers of one node share in one round: a sealed memfd that the agent makes
// and every worker inherits as DDP_SHM_FD. It has no name, so nothing is left of it after the last
// process. Pages are backed when they are first touched, so its size is an upper bound, not a cost.
namespace ddp::wire {

inline constexpr std::uint32_t kShmMagic = 0x53504444;  // "DDPS"
inline constexpr std::uint32_t kShmVersion = 5;
inline constexpr std::size_t kShmHeaderBytes = 4096;
// What a rank traces (trace_ring.h), at the end of the region. Its first page says whether somebody
// wants to see it; the others are touched only then.
inline constexpr std::size_t kTraceBytes = (std::size_t{1} << 20) + 4096;
// The region of one worker: its operation recorder, its flags, its staging, its arena and its
// trace. Far larger than needed, because only touched pages cost memory.
//
// The odd number of pages keeps equal offsets of two regions from being a power of two apart.
// Processors that predict the way of their first-level cache by a hash of the address (AMD's Zen)
// confuse two such lines, and reading both costs seven times as much.
inline constexpr std::size_t kShmBytesPerWorker = (std::size_t{16} << 30) + 18 * 4096 + kTraceBytes;
inline constexpr std::size_t kTraceOffset = kShmBytesPerWorker - kTraceBytes;
// The flight recorder, which the agent reads even of a dead or silent worker. It is at the
// beginning of the region.
inline constexpr std::size_t kFlightBytes = 48u << 10;

// How the workers of a round guard their connections to other nodes
// (worker/transport/link_guard.h).
enum class LinkProtection : std::int32_t { kNone = 0, kProven = 1, kEncrypted = 2 };
inline constexpr std::size_t kLinkKeyBytes = 32;
// The key is the same on all nodes of the round, and no other round has it (PROTOCOL.md, "What
// workers say to each other").
struct LinkKey {
  LinkProtection protection = LinkProtection::kNone;
  std::array<unsigned char, kLinkKeyBytes> bytes{};
};

// First page. The agent fills the fixed fields before it starts a worker; what follows the header
// belongs to worker/transport.
struct ShmHeader {
  std::uint32_t magic = kShmMagic;
  std::uint32_t version = kShmVersion;
  std::uint64_t size_bytes = 0;
  std::int32_t local_size = 0;
  std::int32_t reserved = 0;
  Round round = kNoRound;
  LinkKey link_key{};

  // 0 while the round lives; 1 once it is aborted. A local worker or the agent that aborts the
  // round raises abort_claim from 0 to 1 by compare-and-swap. The one that succeeds writes the
  // three fields after abort_claim, then sets abort to 1. The others set abort to 1 as well,
  // because that one may have died; the text may then be cut short. Readers look at the fields only
  // when abort is 1.
  alignas(128) std::atomic<std::uint32_t> abort{0};
  std::atomic<std::uint32_t> abort_claim{0};
  std::int32_t abort_rank = -1;  // The rank that caused the abort; -1: none.
  std::int32_t abort_code = 0;   // Errc of the cause; 0: raised by the agent.
  char abort_reason[480] = {};   // NUL-terminated text.
};
static_assert(sizeof(ShmHeader) <= kShmHeaderBytes);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t shm_bytes(int local_size) {
  return kShmHeaderBytes + static_cast<std::size_t>(local_size) * kShmBytesPerWorker;
}

}  // namespace ddp::wire
