#include "worker/buckets/zero_partition.h"

#include <algorithm>
#include <utility>

namespace ddp::buckets {
namespace {

// Shares of this many elements or more are whole cache lines of every element type.
constexpr std::size_t kLargeShare = 1024;
constexpr std::size_t kLine = 64;

}  // namespace

ZeroPartition::ZeroPartition(std::vector<std::vector<Slot>> buckets, std::size_t parameters,
                             int world_size)
    : world_size_(world_size), places_(parameters) {
  for (std::vector<Slot>& slots : buckets) {
    Bucket bucket;
    for (const Slot& slot : slots) {
      places_[slot.parameter] = {buckets_.size(), bucket.elements, slot.elements};
      bucket.elements += slot.elements;
    }
    bucket.share = bucket.elements / static_cast<std::size_t>(world_size);
    // Alone, a rank has everything.
    if (world_size > 1 && bucket.share >= kLargeShare) bucket.share -= bucket.share % kLine;
    bucket.slots = std::move(slots);
    buckets_.push_back(std::move(bucket));
  }
}

ZeroPartition::Span ZeroPartition::part(std::size_t parameter, std::size_t begin,
                                        std::size_t end) const {
  const Place& place = places_[parameter];
  const std::size_t last = place.offset + place.elements;
  const std::size_t from = std::clamp(begin, place.offset, last);
  const std::size_t to = std::clamp(end, place.offset, last);
  return {from - place.offset, to - from};
}

ZeroPartition::Span ZeroPartition::owned(std::size_t parameter, Rank rank) const {
  const std::size_t share = buckets_[places_[parameter].bucket].share;
  const std::size_t begin = share * static_cast<std::size_t>(rank);
  return part(parameter, begin, begin + share);
}

ZeroPartition::Span ZeroPartition::common(std::size_t parameter) const {
  const std::size_t bucket = places_[parameter].bucket;
  return part(parameter, divided(bucket), buckets_[bucket].elements);
}

}  // namespace ddp::buckets
