#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// Sends one block of bytes from every node to every node, over the links of this rank's lane. The
// operation's record goes first, so nodes that are about to do different things find out. If the
// blocks are empty, this is only a meeting.
//
// A few nodes send to each other directly. Many nodes use ceil(log2 M) rounds, in which each node
// passes on all that it has (Bruck et al., 1997: "Efficient algorithms for all-to-all
// communications in multiport message-passing systems").
class NodeGather {
 public:
  // blocks: by node, where the node's block goes; this node's own block is sent. direct: whether
  // nodes send to each other directly; the same on all ranks.
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  using Blocks = std::pmr::vector<Block>;
  // Its lists use the memory resource of `blocks`, which must outlive this object.
  NodeGather(transport::Transport& transport, const OpRecord& record, Blocks blocks, bool direct);
  transport::Advance step();

  // For nodes that send directly: whether everything has been sent to a node, or received from it,
  // so that the link is free for what follows.
  bool sent_to(int node) const { return leg_of(node, true).done(); }
  bool received_from(int node) const { return leg_of(node, false).done(); }
  bool done() const { return done_; }

  // For the message of a timeout: which peers have shown their record and which have not.
  void note_arrivals(std::vector<Rank>& arrived, std::vector<Rank>& missing) const;

 private:
  struct Greeting {
    std::uint64_t magic = 0x5041524750445022;  // Differs from the data of another operation.
    OpRecord record;
  };
  // What goes one way through one link in one round.
  struct Leg {
    transport::Link* link = nullptr;
    bool sending = false;
    Greeting greeting;
    Blocks spans;
    std::size_t next = 0;  // Span; the greeting is before the first.
    bool greeted = false;
    Piece piece;
    bool done() const { return greeted && next == spans.size(); }
  };

  const Leg& leg_of(int node, bool sending) const {
    const int peer = node < node_ ? node : node - 1;
    return legs_[static_cast<std::size_t>(2 * peer + (sending ? 0 : 1))];
  }
  void plan_direct();
  void plan_round(int distance);
  transport::Advance advance(Leg& leg);
  transport::Advance move(Leg& leg, const Block& span);

  transport::Transport& transport_;
  Greeting greeting_;
  std::pmr::memory_resource* memory_;
  Blocks blocks_;
  int node_;
  int nodes_;
  bool direct_;
  int distance_ = 1;  // Of the current round.
  bool done_ = false;
  std::pmr::vector<Leg> legs_;  // Direct: two for each other node, in order.
  std::pmr::vector<Rank> met_;
};

}  // namespace ddp::collectives
