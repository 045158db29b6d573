#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/collectives/entry.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/node_gather.h"
#include "worker/collectives/stream.h"

namespace ddp {

// Memory that outlives operations, so that none of them allocates.
struct AllReduceScratch {
  std::vector<std::byte> own_partials;
  std::vector<std::byte> their_partials;
};

// all_reduce (and, on one node, reduce) after the entry: a pipeline over chunks of the buffer.
//
// Each chunk is cut into one slice for each lane, and each slice into one part for each node; part
// m of slice k belongs to the rank with local rank k on node m. That rank
//   1. adds up its lane's slice over its node's ranks: partial sums, one for each subtree
//      (tree_order.h) of the node's ranks,
//   2. sends every other node's part of them to its owner there, and gets theirs of its own part,
//   3. combines these to the result of its part, and sends it to the other nodes of its lane,
//   4. hands all parts of its slice to the ranks of its node.
// So a node sends and receives 2 (M-1)/M times the buffer, which is the least there is for M nodes,
// and every result is computed once.
//
// Inside the node, registered buffers are read and written in place. Of private ones every rank
// copies a chunk into its input slot; the owners put their results where they read the inputs; and
// the rank copies these out. So every line of a slot goes from its rank to an owner and back, and
// each of the two writes what it has just read: a line that is read while another processor holds
// it modified comes with the right to write it, whereas writing to a line that others have only
// read costs five to ten times as much. An owner takes its own slice from, and puts it into, the
// user's buffer directly. kSlots chunks are under way at a time.
//
// Through each link go, one way, P(0) .. P(w-1), R(0), P(w), R(1), ... with P(c) the partial sums
// and R(c) the results of chunk c, and w = kSlots: no piece needs a header, and no order of arrival
// can make two nodes wait for each other.
class AllReduce {
 public:
  // base: value of all this rank's chunk flags before the operation; number: the operation's in the
  // segment. meeting: of the lane's ranks, if it is still under way (it then talks to all nodes
  // directly); it is driven along, and data follows it on every link at once.
  AllReduce(Transport& transport, AllReduceScratch& scratch, const Operation& operation,
            const Entry& entry, std::uint32_t number, std::uint32_t base,
            NodeGather* meeting = nullptr);

  // Chunks that the operation adds to the flags.
  std::uint32_t chunks() const { return direct_ ? 0 : static_cast<std::uint32_t>(chunks_); }
  Progress step();

 private:
  // The way to one other node.
  struct Peer {
    Link* link = nullptr;
    int node = 0;
    RankRanges ranges;
    std::size_t partials_at = 0;  // Of its partial sums within a slot of their_partials.
    std::size_t sent_partials = 0, sent_results = 0;
    std::size_t received_partials = 0, received_results = 0;
    Piece out, in;
  };

  void plan_memory(const Entry& entry);
  void plan_peers();
  Progress copy_in();
  Progress add_up();
  Progress send(Peer& peer);
  Progress receive(Peer& peer);
  Progress combine();
  Progress hand_out();
  Progress copy_out();
  Progress leave();
  void add_up_final(std::size_t chunk);
  void add_up_partials(std::size_t chunk);

  bool met() const { return meeting_ == nullptr || meeting_->done(); }
  bool alone() const { return local_size_ == 1; }
  bool is_owner() const { return local_ < lanes_; }
  bool has_result(int local) const {
    return to_all_ || operation_.record.root == transport_.topology().global(local);
  }
  bool others_reached(Flag flag, std::size_t chunk, int limit) const;

  // Sizes in elements; bounds within a chunk.
  std::size_t elements(std::size_t chunk) const;
  Slice slice(std::size_t chunk, int lane) const;
  Slice part(std::size_t chunk, int node) const;  // Of this rank's slice.
  std::byte* user(std::size_t chunk) const { return data_ + chunk * chunk_elements_ * element_; }
  const std::byte* input(int local, std::size_t chunk) const;
  std::byte* own_partials(std::size_t chunk, int node) const;
  std::byte* their_partials(const Peer& peer, std::size_t chunk) const;
  // Where another local rank gets its results of a chunk.
  std::byte* target(int local, std::size_t chunk) const;
  void set_targets(std::size_t chunk, Slice part);
  void spread(std::size_t chunk, Slice part);
  Reduction reduction(DType in, DType out, int divisor) const;

  Transport& transport_;
  AllReduceScratch& scratch_;
  const Operation& operation_;
  NodeGather* meeting_;
  std::uint32_t number_;
  std::uint32_t base_;
  int local_;
  int local_size_;
  int lanes_;
  int node_;
  int nodes_;
  bool to_all_;                     // all_reduce, not reduce.
  bool direct_ = true;              // All buffers of the node can be reached in place.
  bool in_place_partials_ = false;  // The user's buffer is this node's partial sum.
  std::byte* data_;
  std::size_t element_;
  std::size_t accumulator_;  // Bytes of an element of a partial sum.
  std::size_t chunk_elements_;
  std::size_t chunks_;
  std::size_t slice_elements_;   // Most in a slice.
  std::size_t part_elements_;    // Most in a part.
  std::size_t their_bytes_ = 0;  // Of a slot of their_partials.
  RankRanges own_ranges_;
  std::vector<Peer> peers_;
  std::vector<const std::byte*> inputs_;  // Direct: by local rank.
  std::vector<std::byte*> outputs_;       // The same.
  std::vector<double> factors_;

  // Chunks through each stage, in the order of the stages.
  std::size_t in_ = 0;
  std::size_t added_ = 0;
  std::size_t combined_ = 0;
  std::size_t ready_ = 0;
  std::size_t out_ = 0;
  bool told_ = false;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
  std::vector<RankRange> ranges_;
};

}  // namespace ddp
