#include "worker/transport/arena.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "worker/transport/segment_layout.h"

namespace ddp::transport {
namespace {

constexpr std::size_t kAlignment = 4096;
constexpr std::size_t kGranule = std::size_t{2} << 20;  // The unit of mapping.
constexpr std::size_t kWordBits = 64;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

// First fit over the free ranges, in order of address; neighbours are joined.
class Arena::Free {
 public:
  Free(std::size_t begin, std::size_t end) { ranges_.emplace(begin, end); }

  // Returns where the range begins, or kPrivate if there is no room.
  std::uint64_t take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      const auto [begin, end] = *range;
      if (end - begin < bytes) continue;
      ranges_.erase(range);
      if (begin + bytes < end) ranges_.emplace(begin + bytes, end);
      taken_ += bytes;
      return begin;
    }
    return kPrivate;
  }

  void give_back(std::size_t begin, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    taken_ -= bytes;
    std::size_t end = begin + bytes;
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      ranges_.emplace(begin, end);
    }
  }

  std::size_t taken() {
    const std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> ranges_;  // Begin to end.
  std::size_t taken_ = 0;
};

Arena::Arena(std::shared_ptr<SharedMapping> mapping, int region)
    : mapping_(std::move(mapping)),
      region_(region),
      free_(std::make_shared<Free>(kArenaOffset, wire::kTraceOffset / kAlignment * kAlignment)),
      mapped_(static_cast<std::size_t>(mapping_->local_size())) {
  const std::size_t granules = mapping_->region_bytes() / kGranule + 1;
  for (auto& words : mapped_) {
    words = std::vector<std::atomic<std::uint64_t>>((granules + kWordBits - 1) / kWordBits);
  }
}

std::shared_ptr<std::byte> Arena::allocate(std::size_t bytes, Backing backing) {
  release_unused();
  const std::size_t size = round_up(bytes == 0 ? 1 : bytes, kAlignment);
  const std::uint64_t begin = free_->take(size);
  if (begin == kPrivate) return nullptr;
  std::byte* memory = mapping_->region(region_) + begin;
  if (backing == Backing::kNow) populate(memory, size);
  return {memory, [mapping = mapping_, free = free_, begin, size](std::byte*) {
            free->give_back(begin, size);
          }};
}

void Arena::release_later(std::shared_ptr<std::byte> memory, std::function<bool()> unused) {
  release_unused();
  if (unused()) return;
  const std::lock_guard lock(retired_mutex_);
  retired_.emplace_back(std::move(memory), std::move(unused));
}

void Arena::release_unused() {
  const std::lock_guard lock(retired_mutex_);
  std::erase_if(retired_, [](const auto& each) { return each.second(); });
}

std::size_t Arena::bytes_in_use() {
  release_unused();
  return free_->taken();
}

std::uint64_t Arena::offset_of(const void* data, std::size_t bytes) const {
  const std::byte* region = mapping_->region(region_);
  const auto* begin = static_cast<const std::byte*>(data);
  const bool inside =
      begin >= region + kArenaOffset && begin + bytes <= region + mapping_->region_bytes();
  return inside ? static_cast<std::uint64_t>(begin - region) : kPrivate;
}

std::byte* Arena::at(int region, std::uint64_t offset, std::size_t bytes) {
  auto& mapped = mapped_[static_cast<std::size_t>(region)];
  std::byte* begin = mapping_->region(region) + offset;
  if (bytes == 0 || region == region_) return begin;
  const std::size_t last = (offset + bytes - 1) / kGranule;
  for (std::size_t granule = offset / kGranule; granule <= last; ++granule) {
    auto& word = mapped[granule / kWordBits];
    const std::uint64_t bit = std::uint64_t{1} << granule % kWordBits;
    if ((word.load(std::memory_order_relaxed) & bit) != 0) continue;
    const std::size_t from = granule * kGranule;
    populate(mapping_->region(region) + from, std::min(kGranule, mapping_->region_bytes() - from));
    word.fetch_or(bit, std::memory_order_relaxed);  // Two threads may have done it.
  }
  return begin;
}

}  // namespace ddp::transport
