#pragma once

#include <cstddef>
#include <vector>

namespace ddp {

// What planning needs to know of a parameter.
struct BucketParameter {
  std::size_t bytes = 0;
  int type = 0;  // Any number that tells element types apart.
};

// A bucket is closed as soon as it holds at least this much, so it may be larger by nearly one
// parameter. The first bucket of each type is small, so that communication starts early in
// backward.
struct BucketLimits {
  std::size_t first_bytes = std::size_t{1} << 20;
  std::size_t other_bytes = std::size_t{25} << 20;
};

struct BucketSlot {
  std::size_t parameter = 0;     // Index into the parameters that were planned.
  std::size_t offset_bytes = 0;  // Where its gradient begins in the bucket.
};

// One flat buffer of one element type; slots lie one after the other without gaps.
struct BucketLayout {
  int type = 0;
  std::size_t bytes = 0;
  std::vector<BucketSlot> slots;
};

// Puts parameters, given in the order of definition, into buckets in the reverse order: that is
// about the order in which backward computes their gradients. Every parameter is in exactly one
// bucket, whole. Buckets come in the order in which they are expected to fill up. The result
// depends on the arguments alone, so ranks with equal parameters agree.
std::vector<BucketLayout> plan_buckets(const std::vector<BucketParameter>& parameters,
                                       const BucketLimits& limits);

}  // namespace ddp
