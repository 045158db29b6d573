#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "worker/collectives/cut.h"
#include "worker/collectives/entry.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/node_gather.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// Memory that is kept from one operation to the next, so that no operation allocates.
struct AllReduceScratch {
  std::vector<std::byte> own_partials;
  std::vector<std::byte> their_partials;
  std::vector<std::byte> results;  // For reduce, on ranks that pass results on.
};

// all_reduce, reduce and, between nodes, reduce_scatter, after the entry: a pipeline over chunks of
// the buffer.
//
// Each chunk is cut into parts, one for each lane and node (cut.h). Part m of lane k belongs to the
// rank with local rank k on node m. The rank of lane k on any node
//   1. adds up its lane's parts over its node's ranks: partial sums, one for each subtree
//      (tree_order.h) of the node's ranks,
//   2. sends the partial sums of every other node's part to its owner there, and receives those of
//      its own part,
//   3. combines these to the result of its part, and sends it to the nodes of its lane that want
//      it: all nodes (all_reduce), the root's node (reduce) or none (reduce_scatter),
//   4. passes its results to the ranks of its node that want them.
// Every result is computed once, along the same tree, so all three operations give the same bits.
// Let a be the bytes of a node's partial sums per byte of the buffer: 1 if the node's ranks are a
// subtree, and twice as much for half types, whose sums travel as f32. A node sends, and receives,
// this many times the size of the buffer:
//   all_reduce      (1 + a) (M-1)/M, for a = 1 the least possible for M nodes
//   reduce_scatter  a (M-1)/M between equal nodes; also the least possible
//   reduce          a^2 (M-1) / (a M - 1), 1 for a = 1, and between two nodes one way only (cut.h):
//                   the root's node must receive the whole buffer
//
// For all_reduce, two nodes may instead send each other all their partial sums, and both combine
// them ("swap"): the same bytes, without a second trip. This is done if a node's partial sums
// are no larger than the buffer (a = 1).
//
// The partial sum of a node with one rank is its input. If all nodes have one rank, the input
// travels unchanged, so a = 1 for half types too, unless inputs are multiplied first.
//
// Inside the node, registered buffers are read and written in place. With private buffers, every
// rank copies a chunk into its input slot, the owners put their results where they read the inputs,
// and the rank copies these out. So every cache line of a slot goes from its rank to an owner and
// back, and each of the two writes what it has just read. This matters: a line that is read while
// another processor holds it modified comes with the right to write it, but writing to a line that
// others have only read costs five to ten times as much. Lines that receive no result are taken
// (take_lines.h). An owner reads and writes its own slice directly in the user's buffer. Up to
// kSlots chunks are in the pipeline at a time.
//
// In each direction a link carries P(0) .. P(w-1), R(0), P(w), R(1), ..., where P(c) are the
// partial sums and R(c) the results of chunk c, and w = kSlots. So no piece needs a header, and no
// order of arrival can make two nodes wait for each other. A piece that the receiver does not want
// is empty.
//
// A rank that has finished knows that all ranks called the same operation, because what it received
// depends on every rank's data. A reduce sends nothing back to the nodes without the root; there,
// the last R from the root's node is one byte, sent when the root has its result.
class AllReduce {
 public:
  // base: the value of all this rank's chunk flags before the operation. number: the operation's
  // number in the segment. swap: whether two nodes may swap their partial sums; the same on all
  // ranks. memory: for lists; must outlive this object. meeting: the meeting of the lane's ranks,
  // if it is still in progress (it then talks to all nodes directly); step() drives it too, and
  // data follows it at once on every link.
  AllReduce(transport::Transport& transport, AllReduceScratch& scratch, const Operation& operation,
            const Entry& entry, std::uint32_t number, std::uint32_t base, bool swap,
            std::pmr::memory_resource* memory, NodeGather* meeting = nullptr);

  // How much the operation adds to the chunk flags.
  std::uint32_t chunks() const { return direct_ ? 0 : static_cast<std::uint32_t>(chunks_); }
  transport::Advance step();

 private:
  // The transfers to and from one other node.
  struct Peer {
    transport::Link* link = nullptr;
    int node = 0;
    RankRanges ranges;
    // Where, within a slot, this node's partial sums of the peer's part lie, and the peer's of
    // ours.
    std::size_t own_at = 0, theirs_at = 0;
    // Whether results (R) are sent to it, and received from it.
    bool results_out = true, results_in = true;
    std::byte* landing = nullptr;  // For its results, if these belong in another rank's buffer.
    std::size_t sent_partials = 0, sent_results = 0;
    std::size_t received_partials = 0, received_results = 0;
    Piece out, in;
  };

  void plan_memory(const Entry& entry);
  void plan_peers();
  void plan_results();
  transport::Advance copy_in();
  transport::Advance add_up();
  transport::Advance send(Peer& peer);
  transport::Advance receive(Peer& peer);
  transport::Advance combine();
  transport::Advance hand_out();
  transport::Advance copy_out();
  transport::Advance leave();
  void add_up_final(std::size_t chunk);
  void add_up_partials(std::size_t chunk);
  void add_up_part(std::size_t chunk, Slice part, std::byte* target);
  void place_results(const Peer& peer, std::size_t chunk);

  bool met() const { return meeting_ == nullptr || meeting_->done(); }
  bool alone() const { return local_size_ == 1; }
  bool is_owner() const { return local_ < lanes_; }
  bool to_all() const { return operation_.record.kind == OpKind::kAllReduce; }
  bool scattered() const { return operation_.record.kind == OpKind::kReduceScatter; }
  // Whether a node gets the results of all parts.
  bool gets_results(int node) const { return (to_all() && !swap_) || node == root_node_; }
  // Whether a rank of this node gets those results.
  bool has_result(int local) const {
    return to_all() || operation_.record.root == transport_.topology().global(local);
  }
  // For reduce: this node only passes results on.
  bool passes_on() const { return root_node_ >= 0 && root_node_ != node_; }
  const Peer& peer_of(int node) const {
    return peers_[static_cast<std::size_t>(node < node_ ? node : node - 1)];
  }
  bool others_reached(transport::Flag flag, std::size_t chunk, int limit) const;

  // Sizes in elements; bounds within a chunk.
  Slice part(std::size_t chunk, int node) const { return cut_.part(chunk, local_, node); }
  std::size_t result_bytes(std::size_t chunk, int from, int to) const {
    if (is_last_word(chunk, from)) return 1;
    return gets_results(to) ? part(chunk, from).size() * element_ : 0;
  }
  // For reduce: whether R(chunk) from a node says that the root has its result.
  bool is_last_word(std::size_t chunk, int from) const {
    return from == root_node_ && chunk + 1 == chunks_;
  }
  // Where a local rank's input lies, and where its result goes.
  const std::byte* input(int local, std::size_t chunk, const Cut::Run& run) const;
  std::byte* output(int local, std::size_t chunk, const Cut::Run& run) const;
  const std::byte* own_partials(std::size_t chunk, int node, std::size_t at) const;
  std::byte* their_partials(const Peer& peer, std::size_t chunk) const;
  std::byte* passed_result(std::size_t chunk) const;
  // Where this rank's own result lies when it is sent, and where another node's is received.
  const std::byte* outgoing_result(std::size_t chunk) const;
  std::byte* incoming_result(const Peer& peer, std::size_t chunk);
  void set_targets(std::size_t chunk, const Cut::Run& run);
  Reduction reduction(DType in, DType out, int divisor) const;

  transport::Transport& transport_;
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
  int root_node_;                   // For reduce; else -1.
  DType partial_type_;              // Of the elements of partial sums.
  bool swap_;                       // Two nodes swap all partial sums.
  bool direct_ = true;              // All buffers of the node are accessible in place.
  bool in_place_partials_ = false;  // The user's buffer holds this node's partial sum.
  Cut cut_;
  std::size_t chunks_;
  std::size_t element_;
  std::size_t accumulator_;      // Bytes of an element of a partial sum.
  std::size_t own_at_ = 0;       // Where this rank's own part begins in a slot.
  std::size_t own_bytes_ = 0;    // Size of a slot of own_partials.
  std::size_t their_bytes_ = 0;  // Size of a slot of their_partials.
  std::byte last_word_{};
  RankRanges own_ranges_;
  std::pmr::vector<Peer> peers_;
  std::pmr::vector<const std::byte*> inputs_;  // By local rank, if accessible in place.
  std::pmr::vector<std::byte*> outputs_;       // The same.
  std::pmr::vector<double> factors_;

  // How many chunks have passed each stage, in the order of the stages.
  std::size_t in_ = 0;
  std::size_t added_ = 0;
  std::size_t combined_ = 0;
  std::size_t ready_ = 0;
  std::size_t out_ = 0;
  bool told_ = false;
  std::pmr::vector<const std::byte*> sources_;
  std::pmr::vector<std::byte*> targets_;
  std::pmr::vector<RankRange> ranges_;
};

}  // namespace ddp::collectives
