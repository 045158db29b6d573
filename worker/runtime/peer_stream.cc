#include "worker/runtime/peer_stream.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "worker/transport/non_blocking.h"

namespace ddp::runtime {
namespace {

// Publish after this many bytes, so that both sides copy at the same time.
constexpr std::size_t kChunkBytes = 32u << 10;
constexpr std::uint64_t kGenerations = 4096;  // Fit into the low bits of an offset.

}  // namespace

PeerRings::PeerRings(std::shared_ptr<transport::Segment> segment,
                     std::shared_ptr<transport::Arena> arena, int local, int peer,
                     std::uint32_t generation)
    : segment_(std::move(segment)),
      arena_(std::move(arena)),
      local_(local),
      peer_(peer),
      generation_(generation) {}

PeerRings::~PeerRings() {
  if (reader_ || find_ring()) reader_->detach();
  if (!memory_) return;
  auto* ring = reinterpret_cast<transport::PairRing*>(memory_.get());
  arena_->release_later(std::move(memory_),
                        [ring] { return ring->detached.load(std::memory_order_acquire) != 0; });
}

bool PeerRings::make_ring() {
  if (writer_) return true;
  if (!ended_.empty()) return false;
  memory_ = arena_->allocate(sizeof(transport::PairRing));
  if (!memory_) {
    ended_ = fmt::format("the shared memory of this rank has no room for a ring of {} KiB",
                         sizeof(transport::PairRing) >> 10);
    return false;
  }
  std::memset(memory_.get(), 0, offsetof(transport::PairRing, bytes));
  writer_.emplace(*reinterpret_cast<transport::PairRing*>(memory_.get()));
  const std::uint64_t offset = arena_->offset_of(memory_.get(), sizeof(transport::PairRing));
  segment_->pairs(local_).rings[peer_].store(offset | generation_ % kGenerations,
                                             std::memory_order_seq_cst);
  return true;
}

bool PeerRings::find_ring() {
  const std::uint64_t entry = segment_->pairs(peer_).rings[local_].load(std::memory_order_acquire);
  if (entry == 0 || entry % kGenerations != generation_ % kGenerations) return false;
  std::byte* ring =
      segment_->mapping()->region(segment_->region_of(peer_)) + entry / kGenerations * kGenerations;
  transport::populate(ring, sizeof(transport::PairRing));
  reader_.emplace(*reinterpret_cast<transport::PairRing*>(ring));
  return true;
}

void PeerRings::wake_peer() {
  if (segment_->doorbell(peer_).sleepers.load(std::memory_order_seq_cst) != 0)
    segment_->ring(peer_);
}

std::size_t PeerRings::write(Bytes first, Bytes second) {
  if (!make_ring()) return 0;
  std::size_t moved = writer_->write(first.data(), first.size());
  if (moved == first.size()) {
    while (!second.empty()) {
      const std::size_t count = writer_->write(second.data(), std::min(second.size(), kChunkBytes));
      if (count == 0) break;
      moved += count;
      second = second.subspan(count);
      if (second.empty()) break;
      writer_->publish();
      wake_peer();
    }
  }
  if (moved == 0) return 0;
  writer_->publish();
  wake_peer();
  return moved;
}

std::size_t PeerRings::read(std::byte* to, std::size_t bytes) {
  if (!reader_ && !find_ring()) return 0;
  std::size_t moved = 0;
  while (moved < bytes) {
    const std::size_t count = reader_->read(to + moved, std::min(bytes - moved, kChunkBytes));
    if (count == 0) break;
    moved += count;
    if (reader_->release()) wake_peer();
  }
  return moved;
}

bool PeerRings::write_all(Bytes first, Bytes second) {
  if (!make_ring() || !writer_->has_room(first.size() + second.size())) return false;
  writer_->write(first.data(), first.size());
  writer_->write(second.data(), second.size());
  writer_->publish();
  wake_peer();
  return true;
}

std::optional<std::uint32_t> PeerRings::take_ticket() {
  if (!make_ring()) return {};
  return writer_->take_ticket();
}

void PeerRings::take(std::uint32_t ticket) {
  reader_->take(ticket);
  wake_peer();
}

PeerSocket::PeerSocket(transport::Connection connection)
    : connection_(std::move(connection)),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {
  transport::make_non_blocking(connection_.fd());
}

std::size_t PeerSocket::write(Bytes first, Bytes second) {
  wants_write_ = false;
  std::size_t moved = 0;
  while (ended_.empty() && first.size() + second.size() > 0) {
    const ssize_t sent = connection_.send(first, second);
    if (sent < 0) {
      wants_write_ = transport::would_block(errno);
      if (!wants_write_) ended_ = connection_.explain(errno);
      break;
    }
    const auto count = static_cast<std::size_t>(sent);
    const std::size_t of_first = std::min(count, first.size());
    first = first.subspan(of_first);
    second = second.subspan(count - of_first);
    moved += count;
  }
  return moved;
}

std::size_t PeerSocket::take_buffered(std::byte* to, std::size_t bytes) {
  const std::size_t count = std::min(bytes, end_ - begin_);
  if (count > 0) std::memcpy(to, buffer_.get() + begin_, count);
  begin_ += count;
  return count;
}

std::size_t PeerSocket::read(std::byte* to, std::size_t bytes) {
  std::size_t moved = take_buffered(to, bytes);
  while (moved < bytes && ended_.empty()) {
    const ssize_t received =
        connection_.receive({to + moved, bytes - moved}, {buffer_.get(), kBufferBytes});
    if (received < 0 && transport::would_block(errno)) break;
    if (received <= 0) {
      ended_ = received == 0 ? "it closed the connection" : connection_.explain(errno);
      break;
    }
    const auto count = static_cast<std::size_t>(received);
    const std::size_t direct = std::min(count, bytes - moved);
    moved += direct;
    begin_ = 0;
    end_ = count - direct;
  }
  return moved;
}

void PeerSocket::check_way() {
  if (connection_.is_cut(transport::Connection::kCutAfter)) ended_ = connection_.explain(ETIMEDOUT);
}

void PeerSocket::end_writing() { connection_.shut_down(SHUT_WR); }

}  // namespace ddp::runtime
