#include "worker/collectives/node_gather.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/collectives/entry.h"

namespace ddp::collectives {

NodeGather::NodeGather(transport::Transport& transport, const OpRecord& record, Blocks blocks,
                       bool direct)
    : transport_(transport),
      memory_(blocks.get_allocator().resource()),
      blocks_(std::move(blocks)),
      node_(transport.topology().node()),
      nodes_(transport.topology().nodes()),
      direct_(direct),
      legs_(memory_),
      met_(memory_) {
  greeting_.record = record;
  if (direct_) {
    plan_direct();
  } else {
    plan_round(distance_);
  }
}

void NodeGather::plan_direct() {
  const Block own = blocks_[static_cast<std::size_t>(node_)];
  for (int node = 0; node < nodes_; ++node) {
    if (node == node_) continue;
    transport::Link* link = transport_.link(node);
    const Block theirs = blocks_[static_cast<std::size_t>(node)];
    legs_.push_back({link, true, greeting_, Blocks({own}, memory_), 0, false, {}});
    legs_.push_back({link, false, {}, Blocks({theirs}, memory_), 0, false, {}});
  }
}

// This node has the blocks of the `distance` nodes up to itself, and receives those of the same
// number of nodes before them.
void NodeGather::plan_round(int distance) {
  legs_.clear();
  const auto wrapped = [&](int node) { return ((node % nodes_) + nodes_) % nodes_; };
  const int count = std::min(distance, nodes_ - distance);
  Leg out{
      transport_.link(wrapped(node_ + distance)), true, greeting_, Blocks(memory_), 0, false, {}};
  Leg in{transport_.link(wrapped(node_ - distance)), false, {}, Blocks(memory_), 0, false, {}};
  for (int i = 0; i < count; ++i) {
    out.spans.push_back(blocks_[static_cast<std::size_t>(wrapped(node_ - i))]);
    in.spans.push_back(blocks_[static_cast<std::size_t>(wrapped(node_ - distance - i))]);
  }
  legs_.push_back(std::move(out));
  legs_.push_back(std::move(in));
}

transport::Advance NodeGather::step() {
  StepResult result;
  for (;;) {
    bool done = true;
    for (Leg& leg : legs_) {
      if (!leg.done() && !result.add(advance(leg))) return result.get(false);
      done = done && leg.done();
    }
    if (!done) return result.get(false);
    distance_ *= 2;
    done_ = direct_ || distance_ >= nodes_;
    if (done_) return result.get(true);
    plan_round(distance_);
  }
}

transport::Advance NodeGather::advance(Leg& leg) {
  bool moved = false;
  while (!leg.done()) {
    const Block span = leg.greeted
                           ? leg.spans[leg.next]
                           : Block{reinterpret_cast<std::byte*>(&leg.greeting), sizeof(Greeting)};
    const transport::Advance progress = move(leg, span);
    if (progress == transport::Advance::kFailed) return progress;
    if (progress != transport::Advance::kDone) {
      return moved || progress == transport::Advance::kMoved ? transport::Advance::kMoved
                                                             : transport::Advance::kBlocked;
    }
    moved = true;
    if (leg.greeted) {
      ++leg.next;
      continue;
    }
    leg.greeted = true;
    if (leg.sending) continue;
    const Rank peer = leg.link->peer();
    if (leg.greeting.magic != greeting_.magic) {
      return transport_.fail(
          {Errc::kProtocol, peer,
           fmt::format("rank {} sent bytes that are not the beginning of an operation", peer)});
    }
    met_.push_back(peer);
    if (!(leg.greeting.record == greeting_.record)) {
      return report_mismatch(transport_, greeting_.record, leg.greeting.record, peer);
    }
  }
  return transport::Advance::kMoved;
}

transport::Advance NodeGather::move(Leg& leg, const Block& span) {
  return leg.sending ? leg.piece.send(transport_, *leg.link, span.data, span.bytes)
                     : leg.piece.receive(transport_, *leg.link, span.data, span.bytes);
}

void NodeGather::note_arrivals(std::vector<Rank>& arrived, std::vector<Rank>& missing) const {
  arrived.insert(arrived.end(), met_.begin(), met_.end());
  for (const Leg& leg : legs_) {
    if (!leg.sending && !leg.greeted) missing.push_back(leg.link->peer());
  }
}

}  // namespace ddp::collectives
