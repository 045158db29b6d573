#include "worker/collectives/rooted_stream.h"

#include <algorithm>
#include <cstring>

namespace ddp::collectives {
namespace {

constexpr std::size_t kMemoryChunkBytes = 128u << 10;

std::size_t chunk_bytes(const transport::Transport& transport) {
  return transport.topology().nodes() == 1 ? kMemoryChunkBytes : transport::kSlotBytes;
}

void copy_unless_same(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (target != source) std::memcpy(target, source, bytes);
}

}  // namespace

RootedStream::RootedStream(transport::Transport& transport, const Operation& operation,
                           std::uint32_t base)
    : transport_(transport),
      operation_(operation),
      base_(base),
      local_(transport.topology().local_rank()),
      local_size_(transport.topology().local_size()),
      owners_(transport.topology().lanes()),
      node_(transport.topology().node()),
      gather_(operation.record.kind == OpKind::kAllGather),
      block_bytes_(operation.in.bytes()) {
  const std::size_t size = chunk_bytes(transport);
  chunks_ = (block_bytes_ + size - 1) / size;
  if (gather_) chunks_ *= static_cast<std::size_t>(transport.topology().world_size());
  if (transport.previous() == nullptr && transport.next() == nullptr) received_ = chunks_;
  if (transport.next() == nullptr) sent_up_ = chunks_;
  if (transport.previous() == nullptr) sent_down_ = chunks_;
}

RootedStream::Chunk RootedStream::chunk_at(std::size_t chunk) const {
  const transport::Topology& topology = transport_.topology();
  const std::size_t size = chunk_bytes(transport_);
  const auto world = static_cast<std::size_t>(topology.world_size());
  Chunk place{};
  place.root = gather_ ? static_cast<Rank>(chunk % world) : operation_.record.root;
  place.root_node = topology.node_of(place.root);
  place.offset = (gather_ ? chunk / world : chunk) * size;
  place.bytes = std::min(size, block_bytes_ - place.offset);
  return place;
}

std::byte* RootedStream::target(const Chunk& chunk) const {
  const std::size_t block = gather_ ? static_cast<std::size_t>(chunk.root) * block_bytes_ : 0;
  return static_cast<std::byte*>(operation_.out.data) + block + chunk.offset;
}

const std::byte* RootedStream::source(const Chunk& chunk) const {
  return static_cast<const std::byte*>(operation_.in.data) + chunk.offset;
}

bool RootedStream::others_reached(transport::Flag flag, std::size_t chunk, int limit) const {
  for (int local = 0; local < limit; ++local) {
    if (local != local_ && !reached(local, flag, chunk)) return false;
  }
  return true;
}

transport::Advance RootedStream::step() {
  StepResult result;
  if (!result.add(copy_in())) return result.get(false);
  if (is_owner()) {
    if (!result.add(receive())) return result.get(false);
    if (!result.add(send(transport_.next(), true, sent_up_, sending_up_))) return result.get(false);
    if (!result.add(send(transport_.previous(), false, sent_down_, sending_down_)))
      return result.get(false);
    if (publish_passed()) result.add(transport::Advance::kMoved);
  }
  if (!result.add(copy_out())) return result.get(false);
  const bool links_done =
      !is_owner() || (received_ == chunks_ && sent_up_ == chunks_ && sent_down_ == chunks_);
  return result.get(in_ == chunks_ && out_ == chunks_ && links_done);
}

transport::Advance RootedStream::copy_in() {
  const Rank self = transport_.topology().rank();
  while (in_ < chunks_ && chunk_at(in_).root != self) ++in_;
  if (in_ == chunks_) return transport::Advance::kBlocked;
  const Chunk chunk = chunk_at(in_);
  if (!alone()) {
    if (in_ >= transport::kSlots) {
      const std::size_t through = in_ - transport::kSlots + 1;
      if (!others_reached(transport::Flag::kOut, through, local_size_))
        return transport::Advance::kBlocked;
      if (transport_.topology().nodes() > 1 &&
          !others_reached(transport::Flag::kReduced, through, owners_)) {
        return transport::Advance::kBlocked;
      }
    }
    std::memcpy(transport_.segment().input(local_, in_), source(chunk), chunk.bytes);
  }
  copy_unless_same(target(chunk), source(chunk), chunk.bytes);
  ++in_;
  transport_.publish(transport::Flag::kIn, base_ + static_cast<std::uint32_t>(in_));
  return transport::Advance::kMoved;
}

transport::Advance RootedStream::receive() {
  while (received_ < chunks_ && chunk_at(received_).root_node == node_) ++received_;
  if (received_ == chunks_) return transport::Advance::kBlocked;
  const Chunk chunk = chunk_at(received_);
  const Slice own = slice(chunk, local_);
  const bool from_below = chunk.root_node < node_;
  std::byte* slot = target(chunk) + own.begin;
  if (!alone()) {
    if (received_ >= transport::kSlots) {
      const std::size_t through = received_ - transport::kSlots + 1;
      if (std::min(sent_up_, sent_down_) < through ||
          !others_reached(transport::Flag::kOut, through, local_size_)) {
        return transport::Advance::kBlocked;
      }
    }
    slot = transport_.segment().result(local_, received_) + own.begin;
  }
  transport::Link& link = from_below ? *transport_.previous() : *transport_.next();
  const transport::Advance progress = receiving_.receive(transport_, link, slot, own.size());
  if (progress != transport::Advance::kDone) return progress;
  if (!alone()) std::memcpy(target(chunk) + own.begin, slot, own.size());
  ++received_;
  transport_.publish(transport::Flag::kReady, base_ + static_cast<std::uint32_t>(received_));
  return transport::Advance::kMoved;
}

const std::byte* RootedStream::outgoing(std::size_t index, const Chunk& chunk) const {
  const Slice own = slice(chunk, local_);
  if (chunk.root == transport_.topology().rank()) return source(chunk) + own.begin;
  if (chunk.root_node == node_) {
    const int root = chunk.root - transport_.topology().first(node_);
    if (!reached(root, transport::Flag::kIn, index + 1)) return nullptr;
    return transport_.segment().input(root, index) + own.begin;
  }
  if (received_ <= index) return nullptr;
  return alone() ? target(chunk) + own.begin
                 : transport_.segment().result(local_, index) + own.begin;
}

// Chunks whose roots are here or on lower nodes go up; those whose roots are here or on higher
// nodes go down.
transport::Advance RootedStream::send(transport::Link* link, bool upwards, std::size_t& cursor,
                                      Piece& piece) {
  const auto goes_elsewhere = [&](const Chunk& chunk) {
    return upwards ? chunk.root_node > node_ : chunk.root_node < node_;
  };
  while (cursor < chunks_ && goes_elsewhere(chunk_at(cursor))) ++cursor;
  if (cursor == chunks_) return transport::Advance::kBlocked;
  const Chunk chunk = chunk_at(cursor);
  const std::byte* data = outgoing(cursor, chunk);
  if (data == nullptr) return transport::Advance::kBlocked;
  const transport::Advance progress =
      piece.send(transport_, *link, data, slice(chunk, local_).size());
  if (progress != transport::Advance::kDone) return progress;
  ++cursor;
  return transport::Advance::kMoved;
}

bool RootedStream::publish_passed() {
  const std::size_t passed = std::min(sent_up_, sent_down_);
  if (passed == passed_) return false;
  passed_ = passed;
  transport_.publish(transport::Flag::kReduced, base_ + static_cast<std::uint32_t>(passed_));
  return true;
}

transport::Advance RootedStream::copy_out() {
  if (out_ == chunks_) return transport::Advance::kBlocked;
  const Chunk chunk = chunk_at(out_);
  if (chunk.root == transport_.topology().rank()) {
    if (in_ <= out_) return transport::Advance::kBlocked;
  } else if (chunk.root_node == node_) {
    const int root = chunk.root - transport_.topology().first(node_);
    if (!reached(root, transport::Flag::kIn, out_ + 1)) return transport::Advance::kBlocked;
    std::memcpy(target(chunk), transport_.segment().input(root, out_), chunk.bytes);
  } else {
    if (is_owner() && received_ <= out_) return transport::Advance::kBlocked;
    if (!others_reached(transport::Flag::kReady, out_ + 1, owners_))
      return transport::Advance::kBlocked;
    for (int owner = 0; owner < owners_; ++owner) {
      if (owner == local_) continue;
      const Slice part = slice(chunk, owner);
      std::memcpy(target(chunk) + part.begin, transport_.segment().result(owner, out_) + part.begin,
                  part.size());
    }
  }
  ++out_;
  transport_.publish(transport::Flag::kOut, base_ + static_cast<std::uint32_t>(out_));
  return transport::Advance::kMoved;
}

}  // namespace ddp::collectives
