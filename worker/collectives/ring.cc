#include "worker/collectives/ring.h"

#include <algorithm>
#include <array>

#include "worker/collectives/kernels.h"

namespace ddp::collectives {
namespace {

constexpr std::size_t kUnitBytes = 256u << 10;  // Received before it is combined.
constexpr std::size_t kGrainBytes = 64;

}  // namespace

Ring::Ring(transport::Transport& transport, const Operation& operation,
           std::vector<std::byte>& scratch)
    : transport_(transport),
      operation_(operation),
      scratch_(scratch),
      node_(transport.topology().node()),
      nodes_(transport.topology().nodes()),
      steps_(2 * (nodes_ - 1)),
      data_(static_cast<std::byte*>(operation.out.data)),
      element_(dtype_bytes(operation.type())) {
  if (scratch_.size() < kUnitBytes) scratch_.resize(kUnitBytes);
  if (operation.op() != ReduceOp::kPremulSum) return;
  const std::array ranges{RankRange{0, 1}};
  const std::array factors{operation.factor};
  const Reduction scale{operation.type(), operation.type(), operation.op(), 0, factors};
  reduce(scale, ranges, std::array<const std::byte*, 1>{data_}, std::array{data_},
         operation.out.count);
}

transport::Advance Ring::step() {
  StepResult result;
  if (!result.add(send()) || !result.add(receive())) return result.get(false);
  return result.get(out_step_ == steps_ && in_step_ == steps_);
}

Slice Ring::part(int number) const {
  const int wrapped = ((number % nodes_) + nodes_) % nodes_;
  const Slice elements = slice_of(operation_.out.count, wrapped, nodes_, kGrainBytes / element_);
  return {elements.begin * element_, elements.end * element_};
}

// How many bytes of the part that `step` sends are ready to be sent.
std::size_t Ring::available(int step) const {
  if (step == 0 || in_step_ >= step) return sent_part(step).size();
  return in_step_ == step - 1 ? in_offset_ : 0;
}

transport::Advance Ring::send() {
  if (out_step_ == steps_) return transport::Advance::kBlocked;
  const Slice where = sent_part(out_step_);
  const std::size_t ready = available(out_step_);
  if (out_offset_ < where.size()) {
    if (out_offset_ == ready) return transport::Advance::kBlocked;
    transport::Link& next = *transport_.link((node_ + 1) % nodes_);
    const ssize_t sent = next.send_some(data_ + where.begin + out_offset_, ready - out_offset_);
    if (sent < 0) return transport_.fail(next.failure());
    if (sent == 0) return transport::Advance::kBlocked;
    out_offset_ += static_cast<std::size_t>(sent);
  }
  if (out_offset_ == where.size()) {
    ++out_step_;
    out_offset_ = 0;
  }
  return transport::Advance::kMoved;
}

transport::Advance Ring::receive() {
  if (in_step_ == steps_) return transport::Advance::kBlocked;
  const Slice where = received_part(in_step_);
  if (in_offset_ < where.size()) {
    transport::Link& previous = *transport_.link((node_ - 1 + nodes_) % nodes_);
    const std::size_t unit = std::min(kUnitBytes, where.size() - in_offset_);
    std::byte* target = combines(in_step_) ? scratch_.data() : data_ + where.begin + in_offset_;
    const transport::Advance progress = in_piece_.receive(transport_, previous, target, unit);
    if (progress != transport::Advance::kDone) return progress;
    if (combines(in_step_)) combine(unit);
    in_offset_ += unit;
  }
  if (in_offset_ == where.size()) {
    ++in_step_;
    in_offset_ = 0;
  }
  return transport::Advance::kMoved;
}

// Combines received bytes, as the first operand, with this rank's own. The last of these steps
// yields the result.
void Ring::combine(std::size_t bytes) {
  std::byte* own = data_ + received_part(in_step_).begin + in_offset_;
  const std::array ranges{RankRange{0, 1}, RankRange{1, 2}};
  const std::array<const std::byte*, 2> sources{scratch_.data(), own};
  const bool last = in_step_ == nodes_ - 2;
  const Reduction step{
      operation_.type(), operation_.type(), operation_.op(), last ? nodes_ : 0, {}};
  reduce(step, ranges, sources, std::array{own}, bytes / element_);
}

}  // namespace ddp::collectives
