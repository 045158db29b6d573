#include "worker/collectives/all_reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "worker/transport/take_lines.h"

namespace ddp::collectives {
namespace {

std::size_t index(int number) { return static_cast<std::size_t>(number); }

void grow(std::vector<std::byte>& memory, std::size_t bytes) {
  if (memory.size() < bytes) memory.resize(bytes);
}

// The ranges of ranks that a node's partial sums stand for.
RankRanges ranges_of(const transport::Topology& topology, int node) {
  return subtrees_of(topology.first(node), topology.first(node) + topology.local_size(node),
                     topology.world_size());
}

bool can_swap(const OpRecord& record, const transport::Topology& topology) {
  return record.kind == OpKind::kAllReduce && topology.nodes() == 2 &&
         partial_type_of(record, topology) == static_cast<DType>(record.type) &&
         ranges_of(topology, 0).size() == 1 && ranges_of(topology, 1).size() == 1;
}

}  // namespace

AllReduce::AllReduce(transport::Transport& transport, AllReduceScratch& scratch,
                     const Operation& operation, const Entry& entry, std::uint32_t number,
                     std::uint32_t base, bool swap, std::pmr::memory_resource* memory,
                     NodeGather* meeting)
    : transport_(transport),
      scratch_(scratch),
      operation_(operation),
      meeting_(meeting),
      number_(number),
      base_(base),
      local_(transport.topology().local_rank()),
      local_size_(transport.topology().local_size()),
      lanes_(transport.topology().lanes()),
      node_(transport.topology().node()),
      nodes_(transport.topology().nodes()),
      root_node_(operation.record.kind == OpKind::kReduce
                     ? transport.topology().node_of(operation.record.root)
                     : -1),
      partial_type_(partial_type_of(operation.record, transport.topology())),
      swap_(swap && can_swap(operation.record, transport.topology())),
      cut_(operation.record, transport.topology(), swap_),
      chunks_(cut_.chunks()),
      element_(dtype_bytes(operation.type())),
      accumulator_(dtype_bytes(partial_type_)),
      peers_(memory),
      inputs_(index(local_size_), memory),
      outputs_(index(local_size_), memory),
      factors_(memory),
      sources_(memory),
      targets_(memory),
      ranges_(memory) {
  plan_memory(entry);
  if (nodes_ == 1 || !is_owner()) return;
  plan_peers();
  plan_results();
}

void AllReduce::plan_memory(const Entry& entry) {
  // Whether results go from one rank of this node to another.
  const bool handed_out = !scattered() || local_size_ > lanes_;
  for (int local = 0; local < local_size_; ++local) {
    const Offer offer = entry.offer(local);
    factors_.push_back(offer.factor);
    direct_ = direct_ && offer.in != transport::Arena::kPrivate &&
              (offer.out != transport::Arena::kPrivate || !handed_out);
  }
  direct_ = direct_ || alone();
  inputs_[index(local_)] = static_cast<const std::byte*>(operation_.in.data);
  outputs_[index(local_)] = static_cast<std::byte*>(operation_.out.data);
  if (!direct_) return;
  for (int local = 0; local < local_size_; ++local) {
    if (local == local_) continue;
    const auto at = [&](std::uint64_t offset, const Buffer& same) {
      return transport_.arena()->at(transport_.segment().region_of(local), offset, same.bytes());
    };
    inputs_[index(local)] = at(entry.offer(local).in, operation_.in);
    if (handed_out) outputs_[index(local)] = at(entry.offer(local).out, operation_.out);
  }
}

void AllReduce::plan_peers() {
  const transport::Topology& topology = transport_.topology();
  own_ranges_ = ranges_of(topology, node_);
  // Only if every part is contiguous in the user's buffer.
  in_place_partials_ = alone() && accumulator_ == element_ &&
                       operation_.op() != ReduceOp::kPremulSum &&
                       (!scattered() || topology.world_size() == nodes_);
  for (int node = 0; node < nodes_; ++node) {
    // A swap has one part only.
    const std::size_t own_at = swap_ ? 0 : own_bytes_;
    own_bytes_ = own_at + own_ranges_.size() * cut_.most_in_part(node) * accumulator_;
    if (node == node_) {
      own_at_ = own_at;
      continue;
    }
    Peer peer;
    peer.link = transport_.link(node);
    peer.node = node;
    peer.ranges = ranges_of(topology, node);
    peer.own_at = own_at;
    peer.results_out = gets_results(node) || node_ == root_node_;
    peer.results_in = gets_results(node_) || node == root_node_;
    peer.theirs_at = their_bytes_;
    their_bytes_ += peer.ranges.size() * cut_.most_in_part(node_) * accumulator_;
    peers_.push_back(std::move(peer));
  }
  grow(scratch_.their_partials, transport::kSlots * their_bytes_);
  if (!in_place_partials_) grow(scratch_.own_partials, transport::kSlots * own_bytes_);
}

// For reduce: memory for results that belong in another rank's buffer.
void AllReduce::plan_results() {
  if (root_node_ < 0 || has_result(local_)) return;
  if (passes_on()) {
    grow(scratch_.results, transport::kSlots * cut_.most_in_part(node_) * element_);
    return;
  }
  std::size_t bytes = 0;
  for (const Peer& peer : peers_) bytes += cut_.most_in_part(peer.node) * element_;
  grow(scratch_.results, bytes);
  std::byte* landing = scratch_.results.data();
  for (Peer& peer : peers_) {
    peer.landing = landing;
    landing += cut_.most_in_part(peer.node) * element_;
  }
}

// Moves each stage of the pipeline one chunk further if it can. A stage counts the chunks that have
// passed it, and waits for the counters of the stages before it:
//   in_ -> added_ -> sent/received_partials -> combined_ -> sent/received_results -> ready_ -> out_
// A stage that reuses a slot also waits until the last stage that needs the slot's previous chunk,
// kSlots chunks earlier, has passed it. Ranks of a node see each other's progress as flags (kIn,
// kReady); ranks of other nodes see it by the bytes that arrive. Ranks without a lane only run
// copy_in() and copy_out(). With all buffers in place (direct_) there is nothing to copy; instead
// the rank waits in leave() until nobody uses another rank's buffers any more.
transport::Advance AllReduce::step() {
  StepResult result;
  if (meeting_ != nullptr && !meeting_->done()) {
    const transport::Advance met = meeting_->step();
    if (!result.add(met == transport::Advance::kDone ? transport::Advance::kMoved : met))
      return result.get(false);
  }
  if (!direct_ && !result.add(copy_in())) return result.get(false);
  if (is_owner()) {
    if (!result.add(add_up())) return result.get(false);
    for (Peer& peer : peers_) {
      if (!result.add(send(peer)) || !result.add(receive(peer))) return result.get(false);
    }
    if (nodes_ > 1 && !result.add(combine())) return result.get(false);
    if (!result.add(hand_out())) return result.get(false);
  }
  if (direct_) {
    bool through = (!is_owner() || ready_ == chunks_) && met();
    for (const Peer& peer : peers_) through = through && peer.sent_results == chunks_;
    if (!through) return result.get(false);
    const transport::Advance left = leave();
    return left == transport::Advance::kBlocked ? result.get(false) : left;
  }
  if (!result.add(copy_out())) return result.get(false);
  bool done = in_ == chunks_ && out_ == chunks_ && (!is_owner() || ready_ == chunks_) && met();
  for (const Peer& peer : peers_) done = done && peer.sent_results == chunks_;
  return result.get(done);
}

bool AllReduce::others_reached(transport::Flag flag, std::size_t chunk, int limit) const {
  for (int local = 0; local < limit; ++local) {
    if (local != local_ &&
        !transport_.reached(local, flag, base_ + static_cast<std::uint32_t>(chunk)))
      return false;
  }
  return true;
}

const std::byte* AllReduce::input(int local, std::size_t chunk, const Cut::Run& run) const {
  if (direct_ || local == local_) return inputs_[index(local)] + run.in * element_;
  return transport_.segment().input(local, chunk) + run.at * element_;
}

std::byte* AllReduce::output(int local, std::size_t chunk, const Cut::Run& run) const {
  if (direct_ || local == local_) return outputs_[index(local)] + run.out * element_;
  return transport_.segment().input(local, chunk) + run.at * element_;
}

// This node's partial sums of one node's part, for each range of ranks in order.
const std::byte* AllReduce::own_partials(std::size_t chunk, int node, std::size_t at) const {
  if (!in_place_partials_)
    return scratch_.own_partials.data() + (chunk % transport::kSlots) * own_bytes_ + at;
  const std::byte* partials = nullptr;
  cut_.for_each_run(chunk, part(chunk, node),
                    [&](const Cut::Run& run) { partials = input(local_, chunk, run); });
  return partials;
}

std::byte* AllReduce::their_partials(const Peer& peer, std::size_t chunk) const {
  return scratch_.their_partials.data() + (chunk % transport::kSlots) * their_bytes_ +
         peer.theirs_at;
}

std::byte* AllReduce::passed_result(std::size_t chunk) const {
  return scratch_.results.data() +
         (chunk % transport::kSlots) * cut_.most_in_part(node_) * element_;
}

const std::byte* AllReduce::outgoing_result(std::size_t chunk) const {
  if (is_last_word(chunk, node_)) return &last_word_;
  if (passes_on()) return passed_result(chunk);
  return outputs_[index(local_)] + cut_.out_of(chunk, part(chunk, node_)) * element_;
}

std::byte* AllReduce::incoming_result(const Peer& peer, std::size_t chunk) {
  if (is_last_word(chunk, peer.node)) return &last_word_;
  if (peer.landing != nullptr) return peer.landing;
  return outputs_[index(local_)] + cut_.out_of(chunk, part(chunk, peer.node)) * element_;
}

// Copies received results to the ranks of this node.
void AllReduce::place_results(const Peer& peer, std::size_t chunk) {
  const std::byte* results = incoming_result(peer, chunk);
  cut_.for_each_run(chunk, part(chunk, peer.node), [&](const Cut::Run& run) {
    for (int local = 0; local < local_size_; ++local) {
      if (local == local_ || !has_result(local)) continue;
      std::memcpy(output(local, chunk, run), results, run.size * element_);
    }
  });
}

// Sets where a result that is computed here goes: to every rank of the node that wants it, or
// through this rank to another node.
void AllReduce::set_targets(std::size_t chunk, const Cut::Run& run) {
  targets_.clear();
  if (scattered()) {
    const auto rank = static_cast<Rank>(run.row);
    targets_.push_back(output(rank - transport_.topology().first(node_), chunk, run));
    return;
  }
  if (passes_on()) {
    targets_.push_back(passed_result(chunk));
    return;
  }
  if (has_result(local_)) targets_.push_back(output(local_, chunk, run));
  for (int local = 0; local < local_size_; ++local) {
    if (local != local_ && has_result(local)) targets_.push_back(output(local, chunk, run));
  }
}

Reduction AllReduce::reduction(DType in, DType out, int divisor) const {
  return {in, out, operation_.op(), divisor, {}};
}

transport::Advance AllReduce::copy_in() {
  if (in_ == chunks_) return transport::Advance::kBlocked;
  if (in_ - out_ >= transport::kSlots) return transport::Advance::kBlocked;
  std::byte* slot = transport_.segment().input(local_, in_);
  const auto copy = [&](Slice where) {
    cut_.for_each_run(in_, where, [&](const Cut::Run& run) {
      std::memcpy(slot + run.at * element_, input(local_, in_, run), run.size * element_);
    });
  };
  for (int area = 0; area < cut_.areas(); ++area) {
    const Slice whole = cut_.area(in_, area);
    const Slice own = is_owner() ? cut_.slice(in_, area, local_) : Slice{whole.end, whole.end};
    copy({whole.begin, own.begin});
    copy({own.end, whole.end});
  }
  ++in_;
  transport_.publish(transport::Flag::kIn, base_ + static_cast<std::uint32_t>(in_));
  return transport::Advance::kMoved;
}

transport::Advance AllReduce::add_up() {
  if (added_ == chunks_) return transport::Advance::kBlocked;
  if (!direct_ && !others_reached(transport::Flag::kIn, added_ + 1, local_size_))
    return transport::Advance::kBlocked;
  if (nodes_ == 1) {
    add_up_final(added_);
  } else {
    // The slot's previous partial sums must have been sent.
    if (added_ >= transport::kSlots) {
      const std::size_t through = added_ - transport::kSlots + 1;
      if (combined_ < through) return transport::Advance::kBlocked;
      for (const Peer& peer : peers_) {
        if (peer.sent_partials < through) return transport::Advance::kBlocked;
      }
    }
    if (!in_place_partials_) add_up_partials(added_);
  }
  ++added_;
  if (nodes_ == 1) combined_ = added_;
  return transport::Advance::kMoved;
}

// One node: the sum over its ranks is the result.
void AllReduce::add_up_final(std::size_t chunk) {
  Reduction final = reduction(operation_.type(), operation_.type(), local_size_);
  if (operation_.op() == ReduceOp::kPremulSum) final.factors = factors_;
  cut_.for_each_run(chunk, cut_.slice(chunk, 0, local_), [&](const Cut::Run& run) {
    sources_.clear();
    ranges_.clear();
    for (int local = 0; local < local_size_; ++local) {
      sources_.push_back(input(local, chunk, run));
      ranges_.push_back({local, local + 1});
    }
    set_targets(chunk, run);
    reduce(final, ranges_, sources_, targets_, run.size);
  });
}

void AllReduce::add_up_partials(std::size_t chunk) {
  std::byte* slot = scratch_.own_partials.data() + (chunk % transport::kSlots) * own_bytes_;
  add_up_part(chunk, part(chunk, node_), slot + own_at_);
  if (swap_) return;
  for (const Peer& peer : peers_) add_up_part(chunk, part(chunk, peer.node), slot + peer.own_at);
}

void AllReduce::add_up_part(std::size_t chunk, Slice where, std::byte* target) {
  const Rank first = transport_.topology().first(node_);
  for (const RankRange range : own_ranges_) {
    Reduction partial = reduction(operation_.type(), partial_type_, 0);
    if (operation_.op() == ReduceOp::kPremulSum) {
      partial.factors =
          std::span(factors_).subspan(index(range.begin - first), index(range.size()));
    }
    cut_.for_each_run(chunk, where, [&](const Cut::Run& run) {
      sources_.clear();
      ranges_.clear();
      for (Rank rank = range.begin; rank < range.end; ++rank) {
        sources_.push_back(input(rank - first, chunk, run));
        ranges_.push_back({rank, rank + 1});
      }
      reduce(partial, ranges_, sources_, std::array{target}, run.size);
      target += run.size * accumulator_;
    });
  }
  // In an all_reduce the results overwrite all these lines; otherwise take them here.
  for (int local = 0; !direct_ && !to_all() && local < local_size_; ++local) {
    if (local == local_) continue;
    transport::take_lines(transport_.segment().input(local, chunk) + where.begin * element_,
                          where.size() * element_);
  }
}

transport::Advance AllReduce::send(Peer& peer) {
  if (peer.sent_results == chunks_) return transport::Advance::kBlocked;
  if (meeting_ != nullptr && !meeting_->sent_to(peer.node)) return transport::Advance::kBlocked;
  const bool partials =
      peer.sent_partials < chunks_ && peer.sent_partials - peer.sent_results < transport::kSlots;
  const std::size_t chunk = partials ? peer.sent_partials : peer.sent_results;
  if (partials ? added_ <= chunk : combined_ <= chunk) return transport::Advance::kBlocked;
  if (!partials && is_last_word(chunk, node_) && ready_ < chunks_)
    return transport::Advance::kBlocked;
  const transport::Advance progress =
      partials ? peer.out.send(transport_, *peer.link, own_partials(chunk, peer.node, peer.own_at),
                               own_ranges_.size() * part(chunk, peer.node).size() * accumulator_)
               : peer.out.send(transport_, *peer.link, outgoing_result(chunk),
                               result_bytes(chunk, node_, peer.node));
  if (progress != transport::Advance::kDone) return progress;
  ++(partials ? peer.sent_partials : peer.sent_results);
  if (!peer.results_out) peer.sent_results = peer.sent_partials;
  return transport::Advance::kMoved;
}

transport::Advance AllReduce::receive(Peer& peer) {
  if (peer.received_results == chunks_) return transport::Advance::kBlocked;
  if (meeting_ != nullptr && !meeting_->received_from(peer.node))
    return transport::Advance::kBlocked;
  const bool partials = peer.received_partials < chunks_ &&
                        peer.received_partials - peer.received_results < transport::kSlots;
  const std::size_t chunk = partials ? peer.received_partials : peer.received_results;
  transport::Advance progress = transport::Advance::kBlocked;
  if (partials) {
    if (chunk - std::min(chunk, combined_) >= transport::kSlots)
      return transport::Advance::kBlocked;
    progress = peer.in.receive(transport_, *peer.link, their_partials(peer, chunk),
                               peer.ranges.size() * part(chunk, node_).size() * accumulator_);
  } else {
    // The results overwrite inputs, so this rank must have added those up.
    if (added_ <= chunk) return transport::Advance::kBlocked;
    const std::size_t bytes = result_bytes(chunk, peer.node, node_);
    progress = peer.in.receive(transport_, *peer.link, incoming_result(peer, chunk), bytes);
    if (progress == transport::Advance::kDone && gets_results(node_)) place_results(peer, chunk);
  }
  if (progress != transport::Advance::kDone) return progress;
  ++(partials ? peer.received_partials : peer.received_results);
  if (!peer.results_in) peer.received_results = peer.received_partials;
  return transport::Advance::kMoved;
}

// Computes the result of this rank's own part from the partial sums of all nodes.
transport::Advance AllReduce::combine() {
  if (combined_ == added_) return transport::Advance::kBlocked;
  for (const Peer& peer : peers_) {
    if (peer.received_partials <= combined_) return transport::Advance::kBlocked;
    // The result overwrites the partial sums, so they must have been sent.
    if (swap_ && in_place_partials_ && peer.sent_partials <= combined_)
      return transport::Advance::kBlocked;
  }
  // The slot's previous result must have been sent.
  if (passes_on() && combined_ - peer_of(root_node_).sent_results >= transport::kSlots)
    return transport::Advance::kBlocked;
  const std::size_t chunk = combined_;
  const Slice where = part(chunk, node_);
  sources_.clear();
  ranges_.clear();
  const auto add = [&](const RankRanges& ranges, const std::byte* partials) {
    for (const RankRange range : ranges) {
      sources_.push_back(partials);
      ranges_.push_back(range);
      partials += where.size() * accumulator_;
    }
  };
  auto peer = peers_.begin();
  for (int node = 0; node < nodes_; ++node) {
    if (node == node_) {
      add(own_ranges_, own_partials(chunk, node_, own_at_));
    } else {
      add(peer->ranges, their_partials(*peer, chunk));
      ++peer;
    }
  }
  const Reduction last =
      reduction(partial_type_, operation_.type(), transport_.topology().world_size());
  cut_.for_each_run(chunk, where, [&](const Cut::Run& run) {
    set_targets(chunk, run);
    reduce(last, ranges_, sources_, targets_, run.size);
    for (const std::byte*& source : sources_) source += run.size * accumulator_;
  });
  ++combined_;
  return transport::Advance::kMoved;
}

// Once all parts of the slice have arrived, lets the node's ranks copy them.
transport::Advance AllReduce::hand_out() {
  if (ready_ == combined_) return transport::Advance::kBlocked;
  for (const Peer& peer : peers_) {
    if (peer.received_results <= ready_) return transport::Advance::kBlocked;
  }
  ++ready_;
  if (!direct_)
    transport_.publish(transport::Flag::kReady, base_ + static_cast<std::uint32_t>(ready_));
  return transport::Advance::kMoved;
}

// Copies the slices that the other owners have put into this rank's input slot.
transport::Advance AllReduce::copy_out() {
  if (out_ == chunks_ || !others_reached(transport::Flag::kReady, out_ + 1, lanes_))
    return transport::Advance::kBlocked;
  if (is_owner() && ready_ <= out_) return transport::Advance::kBlocked;
  if (scattered() || has_result(local_)) {
    const Slice result = cut_.result(out_, transport_.topology().rank());
    const Slice own = is_owner() ? cut_.slice(out_, scattered() ? node_ : 0, local_)
                                 : Slice{result.end, result.end};
    const std::byte* slot = transport_.segment().input(local_, out_);
    const auto copy = [&](std::size_t begin, std::size_t end) {
      if (begin >= end) return;
      cut_.for_each_run(out_, {begin, end}, [&](const Cut::Run& run) {
        std::memcpy(output(local_, out_, run), slot + run.at * element_, run.size * element_);
      });
    };
    copy(result.begin, std::min(own.begin, result.end));
    copy(std::max(own.end, result.begin), result.end);
  }
  ++out_;
  return transport::Advance::kMoved;
}

// For buffers in place: no rank may return while another rank of the node still reads its input or
// writes its output.
transport::Advance AllReduce::leave() {
  if (alone()) return transport::Advance::kDone;
  if (!told_) {
    told_ = true;
    transport_.publish(transport::Flag::kDone, number_ + 1);
  }
  for (int local = 0; local < local_size_; ++local) {
    if (local != local_ && !transport_.reached(local, transport::Flag::kDone, number_ + 1))
      return transport::Advance::kBlocked;
  }
  return transport::Advance::kDone;
}

}  // namespace ddp::collectives
