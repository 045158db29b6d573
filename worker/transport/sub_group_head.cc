#include "worker/transport/sub_group_head.h"

#include <atomic>
#include <cstring>
#include <utility>

namespace ddp::transport {

std::optional<SubGroupHead> SubGroupHead::allocate(std::shared_ptr<Arena> arena) {
  auto memory = arena->allocate(sizeof(RegionHead), Arena::Backing::kAtUse);
  if (!memory) return {};
  return SubGroupHead(std::move(arena), std::move(memory));
}

SubGroupHead::SubGroupHead(std::shared_ptr<Arena> arena, std::shared_ptr<std::byte> memory)
    : arena_(std::move(arena)), memory_(std::move(memory)) {
  std::memset(static_cast<void*>(&control()), 0, sizeof(RankControl));
}

SubGroupHead::~SubGroupHead() {
  if (!memory_) return;
  const std::atomic<std::uint32_t>& departed = control().departed.value;
  const auto members = static_cast<std::uint32_t>(members_);
  arena_->release_later(std::move(memory_), [&departed, members] {
    return members > 0 && departed.load(std::memory_order_acquire) == members;
  });
}

std::uint64_t SubGroupHead::offset() const {
  return arena_->offset_of(memory_.get(), sizeof(RegionHead));
}

RankControl& SubGroupHead::control() const {
  return reinterpret_cast<RegionHead*>(memory_.get())->control;
}

}  // namespace ddp::transport
