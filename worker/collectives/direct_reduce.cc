#include "worker/collectives/direct_reduce.h"

#include <algorithm>

namespace ddp::collectives {
namespace {

constexpr std::size_t kBlockBytes = 1u << 20;  // Between two looks at the abort word.
constexpr std::size_t kGrainBytes = 128;       // No two owners write to one line.

}  // namespace

DirectReduce::DirectReduce(transport::Transport& transport, const Operation& operation,
                           const Entry& entry, std::uint32_t number,
                           std::pmr::memory_resource* memory)
    : transport_(transport),
      number_(number),
      element_(dtype_bytes(operation.type())),
      inputs_(memory),
      outputs_(memory),
      sources_(memory),
      targets_(memory),
      ranges_(memory),
      factors_(memory) {
  const transport::Topology& topology = transport.topology();
  const int size = topology.local_size();
  const Slice own =
      slice_of(operation.out.count, topology.local_rank(), size, kGrainBytes / element_);
  next_ = own.begin;
  end_ = own.end;
  transport::Arena& arena = *transport.arena();
  const transport::Segment& segment = transport.segment();
  for (int local = 0; local < size; ++local) {
    const Offer offer = entry.offer(local);
    const auto at = [&](std::uint64_t offset) {
      return arena.at(segment.region_of(local), offset, operation.out.bytes());
    };
    inputs_.push_back(at(offer.in));
    if (operation.record.kind == OpKind::kAllReduce ||
        topology.global(local) == operation.record.root)
      outputs_.push_back(at(offer.out));
    ranges_.push_back({local, local + 1});
    factors_.push_back(offer.factor);
  }
  sources_.resize(inputs_.size());
  targets_.resize(outputs_.size());
  reduction_ = {operation.type(), operation.type(), operation.op(), topology.world_size(), {}};
  if (operation.op() == ReduceOp::kPremulSum) reduction_.factors = factors_;
}

transport::Advance DirectReduce::step() {
  if (next_ < end_) return reduce_some();
  const int local = transport_.topology().local_rank();
  if (!told_) {
    told_ = true;
    transport_.publish(transport::Flag::kDone, number_ + 1);
  }
  const int before = others_done_;
  while (others_done_ < transport_.topology().local_size() &&
         (others_done_ == local ||
          transport_.reached(others_done_, transport::Flag::kDone, number_ + 1))) {
    ++others_done_;
  }
  if (others_done_ == transport_.topology().local_size()) return transport::Advance::kDone;
  return others_done_ > before ? transport::Advance::kMoved : transport::Advance::kBlocked;
}

transport::Advance DirectReduce::reduce_some() {
  const std::size_t count = std::min(kBlockBytes / element_, end_ - next_);
  const std::size_t offset = next_ * element_;
  for (std::size_t i = 0; i < inputs_.size(); ++i) sources_[i] = inputs_[i] + offset;
  for (std::size_t i = 0; i < outputs_.size(); ++i) targets_[i] = outputs_[i] + offset;
  reduce(reduction_, ranges_, sources_, targets_, count);
  next_ += count;
  return transport::Advance::kMoved;
}

}  // namespace ddp::collectives
