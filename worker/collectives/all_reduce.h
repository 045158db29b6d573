#pragma once

#include <cstdint>
#include <vector>

#include "worker/collectives/kernels.h"
#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp {

// Memory that outlives operations, so that none of them allocates.
struct AllReduceScratch {
  std::vector<std::byte> partials;  // kSlots slots of kSlotBytes if there are links, else empty.
  // Capacity of both: local size + 1.
  std::vector<const std::byte*> sources;
  std::vector<RankRange> ranges;
};

// all_reduce after Entry: a pipeline over chunks of the buffer.
//
// Every rank copies a chunk into its input slot. Each chunk is cut into slices with one owner per
// node; the owner adds up its slice over the node's ranks in rank order. With several nodes, the
// owners of the same slice form a chain in node order: each continues the sum that its predecessor
// sent, so every element is summed in the order of world ranks, and the last node's owner sends the
// result back down the chain. Every rank then copies the other owners' slices from their result
// slots. An owner takes its own slice from, and puts it into, the user's buffer directly.
//
// Chunks move through these stages independently and in order; kSlots of them fit between two
// stages.
class AllReduce {
 public:
  // base: value of all this rank's chunk flags before the operation.
  AllReduce(Transport& transport, AllReduceScratch& scratch, const Operation& operation,
            std::uint32_t base);

  // Chunks that the operation adds to the flags.
  std::uint32_t chunks() const { return static_cast<std::uint32_t>(chunks_); }
  Progress step();

 private:
  Progress copy_in();
  Progress receive_partial();
  Progress reduce_slice();
  Progress send_partial();
  Progress receive_final();
  Progress send_final();
  Progress copy_out();

  bool alone() const { return local_size_ == 1; }
  bool is_owner() const { return local_ < owners_; }
  bool first_node() const { return transport_.previous() == nullptr; }
  bool last_node() const { return transport_.next() == nullptr; }
  bool done() const;
  // Whether all other local ranks, below `limit`, have brought the flag to `chunk` chunks.
  bool others_reached(Flag flag, std::size_t chunk, int limit) const;
  bool result_slot_free() const;

  std::size_t elements(std::size_t chunk) const;
  std::byte* user(std::size_t chunk) const { return data_ + chunk * chunk_elements_ * element_; }
  Slice slice(std::size_t chunk, int owner) const {
    return slice_of(elements(chunk), owner, owners_, kGrainBytes / element_);
  }
  Slice own_slice(std::size_t chunk) const { return slice(chunk, local_); }
  std::size_t slice_bytes(std::size_t chunk) const { return own_slice(chunk).size() * element_; }
  std::byte* partial(std::size_t chunk) const;
  std::byte* final_slice(std::size_t chunk) const;

  static constexpr std::size_t kGrainBytes = 64;

  Transport& transport_;
  AllReduceScratch& scratch_;
  const Operation& operation_;
  std::uint32_t base_;
  int local_;
  int local_size_;
  int owners_;
  std::byte* data_;
  std::size_t element_;
  std::size_t chunk_elements_;
  std::size_t chunks_;

  // Chunks through each stage, in the order of the stages.
  std::size_t in_ = 0;
  std::size_t partials_received_ = 0;
  std::size_t reduced_ = 0;
  std::size_t partials_sent_ = 0;
  std::size_t ready_ = 0;
  std::size_t finals_sent_ = 0;
  std::size_t out_ = 0;
  Piece partial_in_;
  Piece partial_out_;
  Piece final_in_;
  Piece final_out_;
};

}  // namespace ddp
