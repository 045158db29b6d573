#pragma once

#include <cstddef>
#include <vector>

#include "common/base/ids.h"

namespace ddp::buckets {

// Which elements of which parameters belong to which rank (ZeRO, stage 1: Rajbhandari et al.,
// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020). Pure arithmetic on
// the buckets' layout, so ranks with equal buckets agree.
//
// Elements are counted, not parameters, so a parameter may be divided and ranks differ by less than
// a cache line a bucket: in a bucket of n elements rank r owns [r * share, (r + 1) * share), share
// being n / world rounded down. The few that are left over at the bucket's end are common: every
// rank keeps and updates them, alike, so nothing has to be padded.
class ZeroPartition {
 public:
  struct Slot {
    std::size_t parameter = 0;  // Below the number of parameters; each occurs once in all buckets.
    std::size_t elements = 0;
  };
  struct Bucket {
    std::vector<Slot> slots;  // In order, without gaps.
    std::size_t elements = 0;
    std::size_t share = 0;  // Of each rank; may be 0.
  };
  // A part of one parameter, in elements of its memory. Empty spans begin where the part would.
  struct Span {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  // Where a parameter lies.
  struct Place {
    std::size_t bucket = 0;
    std::size_t offset = 0;  // Of its first element.
    std::size_t elements = 0;
  };

  ZeroPartition(std::vector<std::vector<Slot>> buckets, std::size_t parameters, int world_size);

  int world_size() const { return world_size_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Elements of the bucket that are divided among the ranks; the common ones follow.
  std::size_t divided(std::size_t bucket) const {
    return buckets_[bucket].share * static_cast<std::size_t>(world_size_);
  }
  const Place& place(std::size_t parameter) const { return places_[parameter]; }

  // The part of a parameter that the rank owns. Ranks 0, 1, ... own consecutive parts from element
  // 0.
  Span owned(std::size_t parameter, Rank rank) const;
  // The common part of a parameter: its end, behind the parts that the ranks own.
  Span common(std::size_t parameter) const;

 private:
  Span part(std::size_t parameter, std::size_t begin, std::size_t end) const;

  int world_size_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // By parameter.
};

}  // namespace ddp::buckets
