#include "worker/collectives/all_reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ddp {
namespace {

// Inputs and results of all slots fit into a second-level cache.
constexpr std::size_t kMemoryChunkBytes = 128u << 10;
// What goes through a link in one piece: large enough for few system calls, small enough to
// overlap.
constexpr std::size_t kLinkPieceBytes = 512u << 10;
constexpr std::size_t kGrainBytes = 64;
static_assert(kMemoryChunkBytes <= kSlotBytes);

std::size_t index(int number) { return static_cast<std::size_t>(number); }

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

AllReduce::AllReduce(Transport& transport, AllReduceScratch& scratch, const Operation& operation,
                     const Entry& entry, std::uint32_t number, std::uint32_t base,
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
      to_all_(operation.record.kind == OpKind::kAllReduce),
      data_(static_cast<std::byte*>(operation.out.data)),
      element_(dtype_bytes(operation.type())),
      accumulator_(dtype_bytes(accumulator_of(operation.type()))) {
  plan_memory(entry);
  const std::size_t parts = index(lanes_) * index(nodes_);
  std::size_t bytes = kMemoryChunkBytes;
  // The same on all nodes, wherever their buffers lie.
  const bool lone_ranks = transport.topology().world_size() == nodes_;
  if (nodes_ > 1) bytes = lone_ranks ? kLinkPieceBytes * parts : kSlotBytes;
  chunk_elements_ = bytes / element_;
  chunks_ = (operation.out.count + chunk_elements_ - 1) / chunk_elements_;
  const std::size_t grain = kGrainBytes / element_;
  const std::size_t most = std::min(chunk_elements_, operation.out.count);
  slice_elements_ = round_up(most / index(lanes_) + 1, grain);
  part_elements_ = round_up(slice_elements_ / index(nodes_) + 1, grain);
  if (nodes_ > 1 && is_owner()) plan_peers();
}

void AllReduce::plan_memory(const Entry& entry) {
  for (int local = 0; local < local_size_; ++local) {
    const Offer offer = entry.offer(local);
    factors_.push_back(offer.factor);
    direct_ = direct_ && offer.in != Arena::kPrivate && offer.out != Arena::kPrivate;
  }
  direct_ = direct_ || alone();
  if (!direct_) return;
  for (int local = 0; local < local_size_; ++local) {
    if (local == local_) {
      inputs_.push_back(static_cast<const std::byte*>(operation_.in.data));
      outputs_.push_back(data_);
      continue;
    }
    const auto at = [&](std::uint64_t offset) {
      return transport_.arena()->at(transport_.segment().region_of(local), offset,
                                    operation_.out.bytes());
    };
    inputs_.push_back(at(entry.offer(local).in));
    outputs_.push_back(at(entry.offer(local).out));
  }
}

void AllReduce::plan_peers() {
  const Topology& topology = transport_.topology();
  const auto ranges_of = [&](int node) {
    return subtrees_of(topology.first(node), topology.first(node) + topology.local_size(node),
                       topology.world_size());
  };
  own_ranges_ = ranges_of(node_);
  in_place_partials_ =
      alone() && accumulator_ == element_ && operation_.op() != ReduceOp::kPremulSum;
  for (int node = 0; node < nodes_; ++node) {
    if (node == node_) continue;
    Peer peer;
    peer.link = transport_.link(node);
    peer.node = node;
    peer.ranges = ranges_of(node);
    peer.partials_at = their_bytes_;
    their_bytes_ += peer.ranges.size() * part_elements_ * accumulator_;
    peers_.push_back(std::move(peer));
  }
  const auto grow = [](std::vector<std::byte>& memory, std::size_t bytes) {
    if (memory.size() < bytes) memory.resize(bytes);
  };
  grow(scratch_.their_partials, kSlots * their_bytes_);
  if (!in_place_partials_) {
    // Every part rounds its begin up.
    grow(scratch_.own_partials, kSlots * own_ranges_.size() * slice_elements_ * accumulator_);
  }
}

Progress AllReduce::step() {
  StepResult result;
  if (meeting_ != nullptr && !meeting_->done()) {
    const Progress met = meeting_->step();
    if (!result.add(met == Progress::kDone ? Progress::kMoved : met)) return result.get(false);
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
    const Progress left = leave();
    return left == Progress::kBlocked ? result.get(false) : left;
  }
  if (!result.add(copy_out())) return result.get(false);
  bool done = in_ == chunks_ && out_ == chunks_ && (!is_owner() || ready_ == chunks_) && met();
  for (const Peer& peer : peers_) done = done && peer.sent_results == chunks_;
  return result.get(done);
}

std::size_t AllReduce::elements(std::size_t chunk) const {
  return std::min(chunk_elements_, operation_.out.count - chunk * chunk_elements_);
}

Slice AllReduce::slice(std::size_t chunk, int lane) const {
  return slice_of(elements(chunk), lane, lanes_, kGrainBytes / element_);
}

Slice AllReduce::part(std::size_t chunk, int node) const {
  const Slice own = slice(chunk, local_);
  const Slice within = slice_of(own.size(), node, nodes_, kGrainBytes / element_);
  return {own.begin + within.begin, own.begin + within.end};
}

bool AllReduce::others_reached(Flag flag, std::size_t chunk, int limit) const {
  for (int local = 0; local < limit; ++local) {
    if (local != local_ &&
        !transport_.reached(local, flag, base_ + static_cast<std::uint32_t>(chunk)))
      return false;
  }
  return true;
}

const std::byte* AllReduce::input(int local, std::size_t chunk) const {
  if (direct_) return inputs_[index(local)] + chunk * chunk_elements_ * element_;
  if (local == local_) {
    return static_cast<const std::byte*>(operation_.in.data) + chunk * chunk_elements_ * element_;
  }
  return transport_.segment().input(local, chunk);
}

// The partial sums of one node's part: one range of ranks behind the other.
std::byte* AllReduce::own_partials(std::size_t chunk, int node) const {
  const Slice where = part(chunk, node);
  if (in_place_partials_) return user(chunk) + where.begin * element_;
  const std::size_t slot = own_ranges_.size() * slice_elements_ * accumulator_;
  const std::size_t before = where.begin - slice(chunk, local_).begin;
  return scratch_.own_partials.data() + (chunk % kSlots) * slot +
         own_ranges_.size() * before * accumulator_;
}

std::byte* AllReduce::their_partials(const Peer& peer, std::size_t chunk) const {
  return scratch_.their_partials.data() + (chunk % kSlots) * their_bytes_ + peer.partials_at;
}

std::byte* AllReduce::target(int local, std::size_t chunk) const {
  if (direct_) return outputs_[index(local)] + chunk * chunk_elements_ * element_;
  return transport_.segment().input(local, chunk);
}

// From this rank's buffer to the node's others.
void AllReduce::spread(std::size_t chunk, Slice where) {
  const std::size_t offset = where.begin * element_;
  for (int local = 0; local < local_size_; ++local) {
    if (local == local_) continue;
    std::memcpy(target(local, chunk) + offset, user(chunk) + offset, where.size() * element_);
  }
}

// Where a result that is computed here goes: to every rank of the node that gets it.
void AllReduce::set_targets(std::size_t chunk, Slice where) {
  const std::size_t offset = where.begin * element_;
  targets_.clear();
  if (has_result(local_)) targets_.push_back(user(chunk) + offset);
  for (int local = 0; local < local_size_; ++local) {
    if (local != local_ && has_result(local)) targets_.push_back(target(local, chunk) + offset);
  }
}

Reduction AllReduce::reduction(DType in, DType out, int divisor) const {
  return {in, out, operation_.op(), divisor, {}};
}

Progress AllReduce::copy_in() {
  if (in_ == chunks_) return Progress::kBlocked;
  if (in_ - out_ >= kSlots) return Progress::kBlocked;
  const std::size_t count = elements(in_);
  const Slice own = is_owner() ? slice(in_, local_) : Slice{count, count};
  std::byte* slot = transport_.segment().input(local_, in_);
  const std::byte* source = input(local_, in_);
  std::memcpy(slot, source, own.begin * element_);
  std::memcpy(slot + own.end * element_, source + own.end * element_, (count - own.end) * element_);
  ++in_;
  transport_.publish(Flag::kIn, base_ + static_cast<std::uint32_t>(in_));
  return Progress::kMoved;
}

Progress AllReduce::add_up() {
  if (added_ == chunks_) return Progress::kBlocked;
  if (!direct_ && !others_reached(Flag::kIn, added_ + 1, local_size_)) return Progress::kBlocked;
  if (nodes_ == 1) {
    add_up_final(added_);
  } else {
    // The slot's former partial sums have left.
    if (added_ >= kSlots) {
      const std::size_t through = added_ - kSlots + 1;
      if (combined_ < through) return Progress::kBlocked;
      for (const Peer& peer : peers_) {
        if (peer.sent_partials < through) return Progress::kBlocked;
      }
    }
    if (!in_place_partials_) add_up_partials(added_);
  }
  ++added_;
  if (nodes_ == 1) combined_ = added_;
  return Progress::kMoved;
}

// One node: the sum over its ranks is the result.
void AllReduce::add_up_final(std::size_t chunk) {
  const Slice own = slice(chunk, local_);
  sources_.clear();
  ranges_.clear();
  for (int local = 0; local < local_size_; ++local) {
    sources_.push_back(input(local, chunk) + own.begin * element_);
    ranges_.push_back({local, local + 1});
  }
  set_targets(chunk, own);
  Reduction final = reduction(operation_.type(), operation_.type(), local_size_);
  if (operation_.op() == ReduceOp::kPremulSum) final.factors = factors_;
  reduce(final, ranges_, sources_, targets_, own.size());
}

void AllReduce::add_up_partials(std::size_t chunk) {
  const Topology& topology = transport_.topology();
  const int first = topology.first(node_);
  for (int node = 0; node < nodes_; ++node) {
    const Slice where = part(chunk, node);
    std::byte* target = own_partials(chunk, node);
    for (const RankRange range : own_ranges_) {
      sources_.clear();
      ranges_.clear();
      for (Rank rank = range.begin; rank < range.end; ++rank) {
        sources_.push_back(input(rank - first, chunk) + where.begin * element_);
        ranges_.push_back({rank, rank + 1});
      }
      Reduction partial = reduction(operation_.type(), accumulator_of(operation_.type()), 0);
      if (operation_.op() == ReduceOp::kPremulSum) {
        partial.factors =
            std::span(factors_).subspan(index(range.begin - first), index(range.size()));
      }
      reduce(partial, ranges_, sources_, std::array{target}, where.size());
      target += where.size() * accumulator_;
    }
  }
}

Progress AllReduce::send(Peer& peer) {
  if (peer.sent_results == chunks_) return Progress::kBlocked;
  if (meeting_ != nullptr && !meeting_->sent_to(peer.node)) return Progress::kBlocked;
  const bool partials =
      peer.sent_partials < chunks_ && peer.sent_partials - peer.sent_results < kSlots;
  const std::size_t chunk = partials ? peer.sent_partials : peer.sent_results;
  if (partials ? added_ <= chunk : combined_ <= chunk) return Progress::kBlocked;
  const Slice where = part(chunk, partials ? peer.node : node_);
  const Progress progress =
      partials ? peer.out.send(transport_, *peer.link, own_partials(chunk, peer.node),
                               own_ranges_.size() * where.size() * accumulator_)
               : peer.out.send(transport_, *peer.link, user(chunk) + where.begin * element_,
                               where.size() * element_);
  if (progress != Progress::kDone) return progress;
  ++(partials ? peer.sent_partials : peer.sent_results);
  return Progress::kMoved;
}

Progress AllReduce::receive(Peer& peer) {
  if (peer.received_results == chunks_) return Progress::kBlocked;
  if (meeting_ != nullptr && !meeting_->received_from(peer.node)) return Progress::kBlocked;
  const bool partials =
      peer.received_partials < chunks_ && peer.received_partials - peer.received_results < kSlots;
  const std::size_t chunk = partials ? peer.received_partials : peer.received_results;
  Progress progress = Progress::kBlocked;
  if (partials) {
    if (chunk - std::min(chunk, combined_) >= kSlots) return Progress::kBlocked;
    progress = peer.in.receive(transport_, *peer.link, their_partials(peer, chunk),
                               peer.ranges.size() * part(chunk, node_).size() * accumulator_);
  } else {
    // The results overwrite inputs, which this rank has added up by then.
    if (added_ <= chunk) return Progress::kBlocked;
    const Slice where = part(chunk, peer.node);
    progress = peer.in.receive(transport_, *peer.link, user(chunk) + where.begin * element_,
                               where.size() * element_);
    if (progress == Progress::kDone) spread(chunk, where);
  }
  if (progress != Progress::kDone) return progress;
  ++(partials ? peer.received_partials : peer.received_results);
  return Progress::kMoved;
}

// The result of this rank's own part, from the partial sums of all nodes.
Progress AllReduce::combine() {
  if (combined_ == added_) return Progress::kBlocked;
  for (const Peer& peer : peers_) {
    if (peer.received_partials <= combined_) return Progress::kBlocked;
  }
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
      add(own_ranges_, own_partials(chunk, node_));
    } else {
      add(peer->ranges, their_partials(*peer, chunk));
      ++peer;
    }
  }
  set_targets(chunk, where);
  reduce(reduction(accumulator_of(operation_.type()), operation_.type(),
                   transport_.topology().world_size()),
         ranges_, sources_, targets_, where.size());
  ++combined_;
  return Progress::kMoved;
}

// All parts of the slice are there: the node's ranks may take them.
Progress AllReduce::hand_out() {
  if (ready_ == combined_) return Progress::kBlocked;
  for (const Peer& peer : peers_) {
    if (peer.received_results <= ready_) return Progress::kBlocked;
  }
  ++ready_;
  if (!direct_) transport_.publish(Flag::kReady, base_ + static_cast<std::uint32_t>(ready_));
  return Progress::kMoved;
}

// The owners have put the others' slices into this rank's input slot.
Progress AllReduce::copy_out() {
  if (out_ == chunks_ || !others_reached(Flag::kReady, out_ + 1, lanes_)) return Progress::kBlocked;
  if (is_owner() && ready_ <= out_) return Progress::kBlocked;
  if (has_result(local_)) {
    const std::size_t count = elements(out_);
    const Slice own = is_owner() ? slice(out_, local_) : Slice{count, count};
    const std::byte* slot = transport_.segment().input(local_, out_);
    std::memcpy(user(out_), slot, own.begin * element_);
    std::memcpy(user(out_) + own.end * element_, slot + own.end * element_,
                (count - own.end) * element_);
  }
  ++out_;
  return Progress::kMoved;
}

// In place: nobody may go on while another rank of the node still reads its input or writes its
// output.
Progress AllReduce::leave() {
  if (alone()) return Progress::kDone;
  if (!told_) {
    told_ = true;
    transport_.publish(Flag::kDone, number_ + 1);
  }
  for (int local = 0; local < local_size_; ++local) {
    if (local != local_ && !transport_.reached(local, Flag::kDone, number_ + 1))
      return Progress::kBlocked;
  }
  return Progress::kDone;
}

}  // namespace ddp
