#include "worker/transport/pair_ring.h"

#include <bit>
#include <cstring>

#include "worker/transport/take_lines.h"

namespace ddp::transport {

bool RingWriter::has_room(std::size_t bytes) {
  if (kRingBytes - (written_ - read_) < bytes) {
    read_ = ring_.read.load(std::memory_order_seq_cst);
  }
  return kRingBytes - (written_ - read_) >= bytes;
}

std::size_t RingWriter::write(const std::byte* data, std::size_t bytes) {
  (void)has_room(bytes);
  const std::size_t count = std::min<std::size_t>(bytes, kRingBytes - (written_ - read_));
  const std::size_t at = written_ % kRingBytes;
  const std::size_t first = std::min(count, kRingBytes - at);
  if (first > 0) std::memcpy(ring_.bytes + at, data, first);
  if (count > first) std::memcpy(ring_.bytes, data + first, count - first);
  written_ += count;
  return count;
}

std::optional<std::uint32_t> RingWriter::take_ticket() {
  const auto ticket = static_cast<std::uint32_t>(std::countr_one(tickets_));
  if (ticket >= kTickets) return {};
  tickets_ |= std::uint64_t{1} << ticket;
  // publish() makes it visible.
  ring_.taken[ticket].store(0, std::memory_order_relaxed);
  return ticket;
}

std::size_t RingReader::read(std::byte* to, std::size_t bytes) {
  if (written_ - read_ < bytes) written_ = ring_.written.load(std::memory_order_seq_cst);
  const std::size_t count = std::min<std::size_t>(bytes, written_ - read_);
  const std::size_t at = read_ % kRingBytes;
  const std::size_t first = std::min(count, kRingBytes - at);
  if (first > 0) std::memcpy(to, ring_.bytes + at, first);
  if (count > first) std::memcpy(to + first, ring_.bytes, count - first);
  take_lines(ring_.bytes + at, first);
  take_lines(ring_.bytes, count - first);
  read_ += count;
  return count;
}

bool RingReader::release() {
  if (read_ - released_ < kUnreleasedBytes) return false;
  released_ = read_;
  ring_.read.store(read_, std::memory_order_seq_cst);
  return true;
}

}  // namespace ddp::transport
