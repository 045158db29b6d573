#include "worker/collectives/block_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/transport/take_lines.h"

namespace ddp::collectives {
namespace {

constexpr std::size_t kChunkBytes = 128u << 10;
constexpr std::size_t kDirectBlockBytes = 1u << 20;  // Between two looks at the abort word.
constexpr std::size_t kGrainBytes = 64;

std::size_t index(int number) { return static_cast<std::size_t>(number); }

}  // namespace

BlockExchange::BlockExchange(transport::Transport& transport, const Operation& operation,
                             const Entry& entry, std::uint32_t number, std::uint32_t base,
                             std::pmr::memory_resource* memory)
    : transport_(transport),
      operation_(operation),
      entry_(entry),
      number_(number),
      base_(base),
      self_(transport.topology().local_rank()),
      size_(transport.topology().local_size()),
      out_data_(static_cast<std::byte*>(operation.out.data)),
      in_data_(static_cast<const std::byte*>(operation.in.data)),
      reduces_(operation.record.kind == OpKind::kReduceScatter),
      gathers_(operation.record.kind == OpKind::kGather),
      incoming_(index(size_), memory),
      outgoing_(index(size_), memory),
      sources_(memory),
      ranges_(memory),
      factors_(memory) {
  plan();
  const std::size_t parts = same_for_all_ ? 1 : index(size_);
  piece_bytes_ = std::max(kGrainBytes, kChunkBytes / parts / kGrainBytes * kGrainBytes);
  chunks_ = (longest_ + piece_bytes_ - 1) / piece_bytes_;
  direct_ = sources_registered();
  sources_.resize(index(size_));
  for (int local = 0; local < size_; ++local) {
    ranges_.push_back({local, local + 1});
    factors_.push_back(entry_.offer(local).factor);
    if (!direct_ || incoming_[index(local)].bytes == 0 || local == self_) continue;
    Flow& flow = incoming_[index(local)];
    flow.data = transport_.arena()->at(transport_.segment().region_of(local),
                                       entry_.offer(local).in, flow.in + flow.bytes);
  }
  incoming_[index(self_)].data = in_data_;
}

void BlockExchange::plan() {
  const std::size_t element = dtype_bytes(operation_.type());
  const std::size_t block = operation_.record.count * element;
  const int root = operation_.record.root;
  longest_ = block;
  for (int local = 0; local < size_; ++local) {
    Flow& in = incoming_[index(local)];
    Flow& out = outgoing_[index(local)];
    switch (operation_.record.kind) {
      case OpKind::kBroadcast:
        same_for_all_ = true;
        in.bytes = local == root && self_ != root ? block : 0;
        out.bytes = self_ == root && local != root ? block : 0;
        break;
      case OpKind::kGather:
        same_for_all_ = true;
        in = {self_ == root ? block : 0, 0, index(local) * block, nullptr};
        out = {local == root ? block : 0, 0, 0, nullptr};
        break;
      case OpKind::kScatter:
        in = {local == root ? block : 0, index(self_) * block, 0, nullptr};
        out = {self_ == root ? block : 0, index(local) * block, 0, nullptr};
        break;
      case OpKind::kAllGather:
        same_for_all_ = true;
        in = {block, 0, index(local) * block, nullptr};
        out = {block, 0, 0, nullptr};
        break;
      default:  // reduce_scatter and all_to_all.
        in = {block, index(self_) * block, reduces_ ? 0 : index(local) * block, nullptr};
        out = {block, index(local) * block, 0, nullptr};
        break;
    }
  }
  if (operation_.record.kind == OpKind::kAllGather && operation_.uneven()) {
    std::size_t begin = 0;
    longest_ = 0;
    for (int local = 0; local < size_; ++local) {
      const std::size_t bytes = operation_.out_counts[index(local)] * element;
      incoming_[index(local)] = {bytes, 0, begin, nullptr};
      outgoing_[index(local)].bytes = operation_.out_counts[index(self_)] * element;
      begin += bytes;
      longest_ = std::max(longest_, bytes);
    }
  }
  if (operation_.record.kind == OpKind::kAllToAll && operation_.uneven()) plan_unequal_all_to_all();
}

// Every rank's list of counts arrived with its entry.
void BlockExchange::plan_unequal_all_to_all() {
  const std::size_t element = dtype_bytes(operation_.type());
  longest_ = 0;
  std::size_t out_begin = 0;
  for (int source = 0; source < size_; ++source) {
    std::pmr::vector<std::uint64_t> counts(index(size_), incoming_.get_allocator());
    std::memcpy(counts.data(), entry_.payload(source), counts.size() * sizeof(std::uint64_t));
    std::size_t begin = 0;
    for (int reader = 0; reader < size_; ++reader) {
      const std::size_t bytes = counts[index(reader)] * element;
      if (reader == self_) incoming_[index(source)] = {bytes, begin, out_begin, nullptr};
      if (source == self_) outgoing_[index(reader)] = {bytes, begin, 0, nullptr};
      begin += bytes;
      longest_ = std::max(longest_, bytes);
    }
    out_begin += incoming_[index(source)].bytes;
  }
}

// Looks at all ranks' sources, so that all ranks decide alike.
bool BlockExchange::sources_registered() const {
  const OpKind kind = operation_.record.kind;
  const bool rooted = kind == OpKind::kBroadcast || kind == OpKind::kScatter;
  for (int local = 0; local < size_; ++local) {
    if (rooted && local != operation_.record.root) continue;
    if (kind == OpKind::kGather && local == operation_.record.root) continue;
    if (entry_.offer(local).in == transport::Arena::kPrivate) return false;
  }
  return true;
}

transport::Advance BlockExchange::step() {
  if (direct_) return step_direct();
  StepResult result;
  if (!result.add(copy_in())) return result.get(false);
  if (!result.add(take_chunk())) return result.get(false);
  return result.get(in_ == chunks_ && out_ == chunks_);
}

transport::Advance BlockExchange::step_direct() {
  if (reduces_ && offset_ < longest_) {
    const std::size_t bytes = std::min(kDirectBlockBytes, longest_ - offset_);
    reduce_piece(offset_, bytes, 0, false);
    offset_ += bytes;
    return transport::Advance::kMoved;
  }
  while (!reduces_ && turn_ < size_) {
    // Each rank begins with its own block, so that not all read from the same one.
    const Flow& flow = incoming_[index((self_ + turn_) % size_)];
    const std::size_t bytes = std::min(kDirectBlockBytes, flow.bytes - offset_);
    std::byte* target = out_data_ + flow.out + offset_;
    const std::byte* source = flow.data + flow.in + offset_;
    if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
    offset_ += bytes;
    if (offset_ < flow.bytes) return transport::Advance::kMoved;
    offset_ = 0;
    ++turn_;
    if (bytes > 0) return transport::Advance::kMoved;
  }
  if (!told_) {
    told_ = true;
    transport_.publish(transport::Flag::kDone, number_ + 1);
  }
  const int before = others_done_;
  while (others_done_ < size_ &&
         (others_done_ == self_ ||
          transport_.reached(others_done_, transport::Flag::kDone, number_ + 1))) {
    ++others_done_;
  }
  if (others_done_ == size_) return transport::Advance::kDone;
  return others_done_ > before ? transport::Advance::kMoved : transport::Advance::kBlocked;
}

std::size_t BlockExchange::piece_of(const Flow& flow, std::size_t chunk) const {
  const std::size_t begin = chunk * piece_bytes_;
  return begin >= flow.bytes ? 0 : std::min(piece_bytes_, flow.bytes - begin);
}

std::byte* BlockExchange::staged(int source, std::size_t chunk) const {
  std::byte* slot = transport_.segment().input(source, chunk);
  return same_for_all_ ? slot : slot + index(self_) * piece_bytes_;
}

transport::Advance BlockExchange::copy_in() {
  if (in_ == chunks_) return transport::Advance::kBlocked;
  for (int reader = 0; reader < size_ && in_ >= transport::kSlots; ++reader) {
    if (reader == self_ || outgoing_[index(reader)].bytes == 0) continue;
    if (!reached(reader, transport::Flag::kOut, in_ - transport::kSlots + 1))
      return transport::Advance::kBlocked;
  }
  std::byte* slot = transport_.segment().input(self_, in_);
  bool copied = false;
  for (int reader = 0; reader < size_; ++reader) {
    const Flow& flow = outgoing_[index(reader)];
    const std::size_t bytes = piece_of(flow, in_);
    if (reader == self_ || bytes == 0 || (same_for_all_ && copied)) continue;
    std::memcpy(same_for_all_ ? slot : slot + index(reader) * piece_bytes_,
                in_data_ + flow.in + in_ * piece_bytes_, bytes);
    copied = true;
  }
  ++in_;
  transport_.publish(transport::Flag::kIn, base_ + static_cast<std::uint32_t>(in_));
  return transport::Advance::kMoved;
}

bool BlockExchange::chunk_there(std::size_t chunk) const {
  for (int source = 0; source < size_; ++source) {
    if (source == self_ || piece_of(incoming_[index(source)], chunk) == 0) continue;
    if (!reached(source, transport::Flag::kIn, chunk + 1)) return false;
  }
  return true;
}

transport::Advance BlockExchange::take_chunk() {
  if (out_ == chunks_ || !chunk_there(out_)) return transport::Advance::kBlocked;
  take(out_);
  ++out_;
  transport_.publish(transport::Flag::kOut, base_ + static_cast<std::uint32_t>(out_));
  return transport::Advance::kMoved;
}

void BlockExchange::take(std::size_t chunk) {
  const std::size_t begin = chunk * piece_bytes_;
  if (reduces_) {
    reduce_piece(begin, piece_of(incoming_[index(self_)], chunk), chunk, true);
    return;
  }
  for (int source = 0; source < size_; ++source) {
    const Flow& flow = incoming_[index(source)];
    const std::size_t bytes = piece_of(flow, chunk);
    if (bytes == 0) continue;
    std::byte* target = out_data_ + flow.out + begin;
    const std::byte* own = in_data_ + flow.in + begin;
    if (source == self_) {
      if (target != own) std::memcpy(target, own, bytes);
    } else if (sole_reader()) {
      transport::copy_taking_lines(target, staged(source, chunk), bytes);
    } else {
      std::memcpy(target, staged(source, chunk), bytes);
    }
  }
}

void BlockExchange::reduce_piece(std::size_t offset, std::size_t bytes, std::size_t slot_chunk,
                                 bool from_slots) {
  if (bytes == 0) return;
  for (int source = 0; source < size_; ++source) {
    const Flow& flow = incoming_[index(source)];
    const bool in_place = source == self_ || !from_slots;
    const std::byte* whole = source == self_ ? in_data_ : flow.data;
    sources_[index(source)] = in_place ? whole + flow.in + offset : staged(source, slot_chunk);
  }
  Reduction reduction{operation_.type(), operation_.type(), operation_.op(), size_, {}};
  if (operation_.op() == ReduceOp::kPremulSum) reduction.factors = factors_;
  reduce(reduction, ranges_, sources_, std::array{out_data_ + offset},
         bytes / dtype_bytes(operation_.type()));
  for (int source = 0; from_slots && source < size_; ++source) {
    if (source != self_) transport::take_lines(staged(source, slot_chunk), bytes);
  }
}

}  // namespace ddp::collectives
