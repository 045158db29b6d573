#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// What a rank tells its neighbours in memory, besides the record.
struct Offer {
  std::uint64_t in = transport::Arena::kPrivate;  // Where the buffers lie, if in its arena.
  std::uint64_t out = transport::Arena::kPrivate;
  double factor = 1.0;
};

// The beginning of every operation inside a node: each rank shows what it is about to do, and goes
// on once all ranks of its node have shown the same. Afterwards every staging slot is free, because
// all ranks of the node have finished the previous operation.
//
// A payload of up to kSmallBytes travels with the record. Offers and payloads of the node's ranks
// can be read until this rank enters its next operation.
//
// On nodes with more than kGroup ranks, the first of every kGroup neighbours (the head) checks its
// group, and the others check only the heads. So a rank reads far fewer records.
class Entry {
 public:
  static constexpr int kGroup = 8;

  // Shows the record. `number` counts the operations of the segment.
  Entry(transport::Transport& transport, const OpRecord& record, const Offer& offer,
        std::uint32_t number, const void* payload, std::size_t payload_bytes);
  transport::Advance step();

  Offer offer(int local) const;
  const std::byte* payload(int local) const {
    return transport_.segment().operation(local, number_).payload;
  }

  // For the message of a timeout: which ranks of this node have arrived and which have not.
  void note_arrivals(std::vector<Rank>& arrived, std::vector<Rank>& missing) const;

 private:
  bool grouped() const { return size_ > kGroup; }
  // Looks at the ranks from `seen` on, every `stride`-th, below `end`.
  transport::Advance look(int& seen, int stride, int end, transport::Flag flag);

  transport::Transport& transport_;
  OpRecord record_;
  std::uint32_t number_;
  int local_;
  int size_;
  int seen_ = 0;        // Local ranks (of the group) below it have shown the same record.
  int heads_seen_ = 0;  // Heads below it have seen the same record of their whole group.
  bool told_ = false;   // This head has announced that its group is complete.
};

// Fails; the message says what the two ranks call, in rank order.
transport::Advance report_mismatch(transport::Transport& transport, const OpRecord& ours,
                                   const OpRecord& theirs, Rank rank);

// "rank 1, 2, 5"; "rank -" for none.
std::string list_ranks(const std::vector<Rank>& ranks);

}  // namespace ddp::collectives
