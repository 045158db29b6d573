#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "worker/transport/segment_layout.h"

namespace ddp::transport {

inline constexpr std::size_t kRingBytes = 256u << 10;
// How much room the reader may hold back; a waiting writer always gets some.
inline constexpr std::size_t kUnreleasedBytes = kRingBytes / 8;
inline constexpr std::size_t kTickets = 64;

// A stream of bytes from one rank to another of its node, in the writer's arena. Zero bytes are its
// initial state. A ticket stands for a buffer of the writer that the reader reads directly.
struct PairRing {
  alignas(kLine) std::atomic<std::uint64_t> written{0};   // By the writer.
  alignas(kLine) std::atomic<std::uint64_t> read{0};      // By the reader.
  alignas(kLine) std::atomic<std::uint32_t> detached{0};  // The reader no longer reads it.
  // Set when the reader is done with the buffer; the writer clears it to reuse the ticket.
  alignas(kLine) std::atomic<std::uint8_t> taken[kTickets];
  alignas(4096) std::byte bytes[kRingBytes];
};

// The writing end. One thread at a time. The reader sees nothing before publish().
class RingWriter {
 public:
  explicit RingWriter(PairRing& ring) : ring_(ring) {}

  bool has_room(std::size_t bytes);
  // Writes what fits; returns how much that was.
  std::size_t write(const std::byte* data, std::size_t bytes);
  void publish() { ring_.written.store(written_, std::memory_order_seq_cst); }  // See Doorbell.

  // An unused ticket, if there is one.
  std::optional<std::uint32_t> take_ticket();
  bool is_taken(std::uint32_t ticket) const {
    return ring_.taken[ticket].load(std::memory_order_seq_cst) != 0;
  }
  void give_back(std::uint32_t ticket) { tickets_ &= ~(std::uint64_t{1} << ticket); }

 private:
  PairRing& ring_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;     // As last seen.
  std::uint64_t tickets_ = 0;  // One bit for each ticket in use.
};

// The reading end. One thread at a time. The writer gets the room back at release().
class RingReader {
 public:
  explicit RingReader(PairRing& ring) : ring_(ring) {}

  // Reads up to `bytes` bytes; returns how many there were.
  std::size_t read(std::byte* to, std::size_t bytes);
  // Returns true if it gave back room, for which the writer may wait. A little may be kept for
  // later.
  bool release();
  void take(std::uint32_t ticket) { ring_.taken[ticket].store(1, std::memory_order_seq_cst); }
  void detach() { ring_.detached.store(1, std::memory_order_release); }

 private:
  PairRing& ring_;
  std::uint64_t read_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t written_ = 0;  // As last seen.
};

}  // namespace ddp::transport
