#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "worker/collectives/entry.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// Moves blocks between the ranks of one node: broadcast, all_gather, reduce_scatter, gather,
// scatter and all_to_all, with blocks of any size. Every rank reads from each source the block for
// itself, and copies it to its place or reduces it with the others.
//
// Sources in registered memory are read in place; a rank has finished when all ranks have said that
// they no longer read others' memory. Otherwise every source copies its blocks, piece by piece,
// into its kSlots input slots, and waits while its slowest reader is kSlots pieces behind.
class BlockExchange {
 public:
  // base: the value of this rank's chunk flags before the operation. memory: for lists; must
  // outlive this object.
  BlockExchange(transport::Transport& transport, const Operation& operation, const Entry& entry,
                std::uint32_t number, std::uint32_t base, std::pmr::memory_resource* memory);
  transport::Advance step();
  std::uint32_t chunks() const { return direct_ ? 0 : static_cast<std::uint32_t>(chunks_); }

 private:
  // What one rank sends to this one, or this one to another.
  struct Flow {
    std::size_t bytes = 0;
    std::size_t in = 0;               // Offset in the source's input.
    std::size_t out = 0;              // Offset in the reader's output.
    const std::byte* data = nullptr;  // The source's whole input, if it can be read in place.
  };

  void plan();
  void plan_unequal_all_to_all();
  bool sources_registered() const;
  transport::Advance step_direct();
  transport::Advance copy_in();
  transport::Advance take_chunk();
  bool chunk_there(std::size_t chunk) const;
  void take(std::size_t chunk);
  void reduce_piece(std::size_t offset, std::size_t bytes, std::size_t slot_chunk, bool staged);
  std::byte* staged(int source, std::size_t chunk) const;
  // Whether each piece in a slot has only one reader.
  bool sole_reader() const { return !same_for_all_ || size_ == 2 || gathers_; }
  std::size_t piece_of(const Flow& flow, std::size_t chunk) const;
  bool reached(int local, transport::Flag flag, std::size_t value) const {
    return transport_.reached(local, flag, base_ + static_cast<std::uint32_t>(value));
  }

  transport::Transport& transport_;
  const Operation& operation_;
  const Entry& entry_;
  std::uint32_t number_;
  std::uint32_t base_;
  int self_;
  int size_;
  std::byte* out_data_;
  const std::byte* in_data_;
  bool reduces_;
  bool gathers_ = false;             // All blocks go to one rank.
  bool same_for_all_ = false;        // One piece serves all readers.
  std::pmr::vector<Flow> incoming_;  // By source.
  std::pmr::vector<Flow> outgoing_;  // By reader.
  std::size_t longest_ = 0;          // Bytes of the longest block of all.
  std::size_t piece_bytes_ = 0;
  std::size_t chunks_ = 0;
  bool direct_ = false;

  std::size_t in_ = 0;
  std::size_t out_ = 0;
  std::size_t offset_ = 0;  // Direct: bytes of the current block that are done.
  int turn_ = 0;            // Direct: sources that are done.
  bool told_ = false;
  int others_done_ = 0;
  std::pmr::vector<const std::byte*> sources_;
  std::pmr::vector<RankRange> ranges_;
  std::pmr::vector<double> factors_;
};

}  // namespace ddp::collectives
