#pragma once

#include <cstdint>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// broadcast and all_gather after Entry: a sequence of chunks, each of which goes from one rank, its
// root, to all others. A broadcast has one root; an all_gather takes a chunk of each rank in turn.
//
// The root copies its chunk into its input slot, where its node's ranks read it. On every node the
// owners of slices pass their slice on along their lane, away from the root's node, and put what
// they receive into their result slots, where the ranks of their node read it. Chunks pass each
// stage in order; a stage is at most kSlots chunks ahead of the next one.
class RootedStream {
 public:
  RootedStream(transport::Transport& transport, const Operation& operation, std::uint32_t base);

  std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_); }
  transport::Advance step();

 private:
  // Where chunk `chunk` belongs.
  struct Chunk {
    Rank root;
    int root_node;
    std::size_t offset;  // From the beginning of the root's block, in bytes.
    std::size_t bytes;
  };
  Chunk chunk_at(std::size_t chunk) const;
  std::byte* target(const Chunk& chunk) const;        // In the user's output.
  const std::byte* source(const Chunk& chunk) const;  // In the user's input; for the root only.

  transport::Advance copy_in();
  transport::Advance receive();
  transport::Advance send(transport::Link* link, bool upwards, std::size_t& cursor, Piece& piece);
  transport::Advance copy_out();
  bool publish_passed();

  bool alone() const { return local_size_ == 1; }
  bool is_owner() const { return local_ < owners_; }
  bool others_reached(transport::Flag flag, std::size_t chunk, int limit) const;
  bool reached(int local, transport::Flag flag, std::size_t chunk) const {
    return transport_.reached(local, flag, base_ + static_cast<std::uint32_t>(chunk));
  }
  Slice slice(const Chunk& chunk, int owner) const {
    return slice_of(chunk.bytes, owner, owners_, 64);
  }
  // Where this rank's slice can be sent from; null until it has arrived.
  const std::byte* outgoing(std::size_t index, const Chunk& chunk) const;

  transport::Transport& transport_;
  const Operation& operation_;
  std::uint32_t base_;
  int local_;
  int local_size_;
  int owners_;
  int node_;
  bool gather_;
  std::size_t block_bytes_;
  std::size_t chunks_;

  std::size_t in_ = 0;
  std::size_t received_ = 0;
  std::size_t sent_up_ = 0;    // To the next node.
  std::size_t sent_down_ = 0;  // To the previous one.
  std::size_t passed_ = 0;     // Published: chunks that this owner no longer needs.
  std::size_t out_ = 0;
  Piece receiving_;
  Piece sending_up_;
  Piece sending_down_;
};

}  // namespace ddp::collectives
