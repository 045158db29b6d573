#pragma once

#include <cstddef>
#include <vector>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// all_reduce of a world whose nodes have one rank each, along a ring of all nodes (Patarasuk and
// Yuan, 2009: "Bandwidth optimal all-reduce algorithms for clusters of workstations"): every rank
// sends only to the next node and receives only from the previous one. So each needs two
// connections, where AllReduce needs M - 1, but the latency is 2 (M-1) steps.
//
// The buffer is cut into M parts. In step j = 0 .. 2M-3 rank g sends part g - j and receives part g
// - 1 - j (modulo M); in the first M - 1 steps it combines what it receives with its own part;
// after that, what it receives is the result. It sends in each step what it received in the one
// before, every byte as soon as it is ready, so the steps overlap.
//
// The sum of part p begins with rank p and goes around the ring. So results are the same on all
// ranks and from run to run, but not bitwise equal to those of the other algorithms, and half types
// are rounded at every step. For averages of f16 it is not used, because their running sums may be
// infinite.
class Ring {
 public:
  // scratch: kept from operation to operation.
  Ring(transport::Transport& transport, const Operation& operation,
       std::vector<std::byte>& scratch);
  transport::Advance step();
  std::uint32_t chunks() const { return 0; }

 private:
  transport::Advance send();
  transport::Advance receive();
  void combine(std::size_t bytes);
  Slice part(int number) const;
  Slice sent_part(int step) const { return part(node_ - step); }
  Slice received_part(int step) const { return part(node_ - 1 - step); }
  std::size_t available(int step) const;
  bool combines(int step) const { return step < nodes_ - 1; }

  transport::Transport& transport_;
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

}  // namespace ddp::collectives
