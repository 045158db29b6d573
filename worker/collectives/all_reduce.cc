#include "worker/collectives/all_reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ddp {
namespace {

constexpr std::size_t kMemoryChunkBytes =
    128u << 10;  // Inputs and results of all slots fit into a second-level cache.
constexpr std::size_t kLinkChunkBytes = kSlotBytes;  // Larger pieces for system calls.
static_assert(kMemoryChunkBytes <= kSlotBytes);

}  // namespace

AllReduce::AllReduce(Transport& transport, AllReduceScratch& scratch, const Operation& operation,
                     std::uint32_t base)
    : transport_(transport),
      scratch_(scratch),
      operation_(operation),
      base_(base),
      local_(transport.topology().local_rank()),
      local_size_(transport.topology().local_size()),
      owners_(transport.topology().lanes()),
      data_(static_cast<std::byte*>(operation.out.data)),
      element_(dtype_bytes(operation.out.type)),
      chunk_elements_((transport.topology().nodes() == 1 ? kMemoryChunkBytes : kLinkChunkBytes) /
                      element_),
      chunks_((operation.out.count + chunk_elements_ - 1) / chunk_elements_) {}

Progress AllReduce::step() {
  StepResult result;
  if (!result.add(copy_in())) return result.get(false);
  if (is_owner()) {
    if (!first_node() && !result.add(receive_partial())) return result.get(false);
    if (!result.add(reduce_slice())) return result.get(false);
    if (!last_node() && !result.add(send_partial())) return result.get(false);
    if (!last_node() && !result.add(receive_final())) return result.get(false);
    if (!first_node() && !result.add(send_final())) return result.get(false);
  }
  if (!result.add(copy_out())) return result.get(false);
  return result.get(done());
}

bool AllReduce::done() const {
  if (in_ < chunks_ || out_ < chunks_) return false;
  if (!is_owner()) return true;
  return reduced_ == chunks_ && ready_ == chunks_ && (last_node() || partials_sent_ == chunks_) &&
         (first_node() || finals_sent_ == chunks_);
}

std::size_t AllReduce::elements(std::size_t chunk) const {
  return std::min(chunk_elements_, operation_.out.count - chunk * chunk_elements_);
}

bool AllReduce::others_reached(Flag flag, std::size_t chunk, int limit) const {
  for (int local = 0; local < limit; ++local) {
    if (local != local_ &&
        !transport_.reached(local, flag, base_ + static_cast<std::uint32_t>(chunk)))
      return false;
  }
  return true;
}

// The result slot of chunk `ready_`.
bool AllReduce::result_slot_free() const {
  if (alone() || ready_ < kSlots) return true;
  const std::size_t through = ready_ - kSlots + 1;
  return (first_node() || finals_sent_ >= through) &&
         others_reached(Flag::kOut, through, local_size_);
}

// Where the sum over the nodes so far is kept: a slot, or the user's buffer where it is this rank's
// input alone.
std::byte* AllReduce::partial(std::size_t chunk) const {
  if (alone() && first_node()) return user(chunk);
  return scratch_.partials.data() + (chunk % kSlots) * kSlotBytes;
}

// Where the result of this rank's slice goes first: to where the node's other ranks find it, if
// there are any.
std::byte* AllReduce::final_slice(std::size_t chunk) const {
  if (alone()) return user(chunk);
  return transport_.segment().result(local_, chunk) + own_slice(chunk).begin * element_;
}

Progress AllReduce::copy_in() {
  if (in_ == chunks_) return Progress::kBlocked;
  if (alone()) {
    in_ = chunks_;
    return Progress::kMoved;
  }
  if (in_ >= kSlots && !others_reached(Flag::kReduced, in_ - kSlots + 1, owners_))
    return Progress::kBlocked;
  const std::size_t count = elements(in_);
  const Slice own = is_owner() ? own_slice(in_) : Slice{count, count};
  std::byte* slot = transport_.segment().input(local_, in_);
  const std::byte* source = user(in_);
  std::memcpy(slot, source, own.begin * element_);
  std::memcpy(slot + own.end * element_, source + own.end * element_, (count - own.end) * element_);
  ++in_;
  transport_.publish(Flag::kIn, base_ + static_cast<std::uint32_t>(in_));
  return Progress::kMoved;
}

Progress AllReduce::receive_partial() {
  if (partials_received_ == chunks_) return Progress::kBlocked;
  const std::size_t used_until = last_node() ? reduced_ : partials_sent_;
  if (partials_received_ - used_until >= kSlots) return Progress::kBlocked;
  const Progress progress =
      partial_in_.receive(transport_, *transport_.previous(), partial(partials_received_),
                          slice_bytes(partials_received_));
  if (progress != Progress::kDone) return progress;
  ++partials_received_;
  return Progress::kMoved;
}

Progress AllReduce::reduce_slice() {
  if (reduced_ == chunks_) return Progress::kBlocked;
  if (alone() && first_node() && !last_node()) {
    reduced_ = chunks_;
    return Progress::kMoved;
  }
  if (!first_node() && partials_received_ == reduced_) return Progress::kBlocked;
  if (!others_reached(Flag::kIn, reduced_ + 1, local_size_)) return Progress::kBlocked;
  const bool slot_free = last_node() ? result_slot_free() : reduced_ - partials_sent_ < kSlots;
  if (!slot_free) return Progress::kBlocked;

  const Slice own = own_slice(reduced_);
  scratch_.sources.clear();
  scratch_.ranges.clear();
  if (!first_node()) scratch_.sources.push_back(partial(reduced_));
  for (int local = 0; local < local_size_; ++local) {
    const std::byte* chunk =
        local == local_ ? user(reduced_) : transport_.segment().input(local, reduced_);
    scratch_.sources.push_back(chunk + own.begin * element_);
  }
  for (int i = 0; i < static_cast<int>(scratch_.sources.size()); ++i) {
    scratch_.ranges.push_back({i, i + 1});
  }
  Reduction reduction{operation_.out.type, operation_.out.type,
                      static_cast<ReduceOp::Kind>(operation_.record.op), 0};
  std::byte* target = partial(reduced_);
  std::byte* also = nullptr;
  if (last_node()) {
    reduction.divisor = transport_.topology().world_size();
    target = final_slice(reduced_);
    if (!alone()) also = user(reduced_) + own.begin * element_;
  }
  // The last node of a chain of lone ranks adds its input, which lies in the target, to what came:
  // in that order.
  if (last_node() && alone() && !first_node()) {
    const std::array targets{partial(reduced_), target};
    reduce(reduction, scratch_.ranges, scratch_.sources, targets, own.size());
  } else {
    const std::array targets{target, also};
    reduce(reduction, scratch_.ranges, scratch_.sources,
           std::span(targets).first(also == nullptr ? 1 : 2), own.size());
  }
  ++reduced_;
  transport_.publish(Flag::kReduced, base_ + static_cast<std::uint32_t>(reduced_));
  if (last_node()) {
    ++ready_;
    transport_.publish(Flag::kReady, base_ + static_cast<std::uint32_t>(ready_));
  }
  return Progress::kMoved;
}

Progress AllReduce::send_partial() {
  if (partials_sent_ == reduced_) return Progress::kBlocked;
  const Progress progress = partial_out_.send(transport_, *transport_.next(),
                                              partial(partials_sent_), slice_bytes(partials_sent_));
  if (progress != Progress::kDone) return progress;
  ++partials_sent_;
  return Progress::kMoved;
}

Progress AllReduce::receive_final() {
  if (ready_ == chunks_ || !result_slot_free()) return Progress::kBlocked;
  // The result overwrites the user's slice, which is free once the sum with it has left.
  if (partials_sent_ <= ready_) return Progress::kBlocked;
  std::byte* target = final_slice(ready_);
  const Progress progress =
      final_in_.receive(transport_, *transport_.next(), target, slice_bytes(ready_));
  if (progress != Progress::kDone) return progress;
  if (!alone()) {
    std::memcpy(user(ready_) + own_slice(ready_).begin * element_, target, slice_bytes(ready_));
  }
  ++ready_;
  transport_.publish(Flag::kReady, base_ + static_cast<std::uint32_t>(ready_));
  return Progress::kMoved;
}

Progress AllReduce::send_final() {
  if (finals_sent_ == ready_) return Progress::kBlocked;
  const Progress progress = final_out_.send(transport_, *transport_.previous(),
                                            final_slice(finals_sent_), slice_bytes(finals_sent_));
  if (progress != Progress::kDone) return progress;
  ++finals_sent_;
  return Progress::kMoved;
}

Progress AllReduce::copy_out() {
  if (out_ == chunks_) return Progress::kBlocked;
  if (alone()) {
    if (out_ == ready_) return Progress::kBlocked;
    out_ = ready_;
    return Progress::kMoved;
  }
  if (!others_reached(Flag::kReady, out_ + 1, owners_)) return Progress::kBlocked;
  for (int owner = 0; owner < owners_; ++owner) {
    if (owner == local_) continue;
    const Slice part = slice(out_, owner);
    std::memcpy(user(out_) + part.begin * element_,
                transport_.segment().result(owner, out_) + part.begin * element_,
                part.size() * element_);
  }
  ++out_;
  transport_.publish(Flag::kOut, base_ + static_cast<std::uint32_t>(out_));
  return Progress::kMoved;
}

}  // namespace ddp
