#pragma once

#include <cstddef>
#include <vector>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp {

// all_reduce of a world whose nodes have one rank each, along a ring of all nodes (Patarasuk and
// Yuan, 2009: "Bandwidth optimal all-reduce algorithms for clusters of workstations"): every rank
// only ever sends to the next and receives from the previous node, so each needs two connections
// where AllReduce needs M - 1, at the price of 2 (M-1) steps of latency.
//
// The buffer is cut into M parts. In step j = 0 .. 2M-3 rank g sends part g - j and receives part
// g - 1 - j (modulo M); for the first M - 1 steps it combines what it receives with its own, then
// it takes it as the result. What it receives in one step is what it sends in the next, and it
// sends every byte as soon as it has it, so the steps overlap.
//
// The order in which a part is combined begins with the rank behind its number: results are the
// same on all ranks and from run to run, but not bitwise those of the other algorithms, and half
// types are rounded at every step.
class Ring {
 public:
  // scratch: kept from operation to operation.
  Ring(Transport& transport, const Operation& operation, std::vector<std::byte>& scratch);
  Advance step();
  std::uint32_t chunks() const { return 0; }

 private:
  Advance send();
  Advance receive();
  void combine(std::size_t bytes);
  Slice part(int number) const;
  Slice sent_part(int step) const { return part(node_ - step); }
  Slice received_part(int step) const { return part(node_ - 1 - step); }
  std::size_t available(int step) const;
  bool combines(int step) const { return step < nodes_ - 1; }

  Transport& transport_;
  const Operation& operation_;
  std::vector<std::byte>& scratch_;
  int node_;
  int nodes_;
  int steps_;
  std::byte* data_;
  std::size_t element_;
  int out_step_ = 0;
  std::size_t out_offset_ = 0;  // Bytes of the part.
  int in_step_ = 0;
  std::size_t in_offset_ = 0;
  Piece in_piece_;
};

}  // namespace ddp
