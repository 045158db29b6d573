#pragma once

#include <cstddef>
#include <vector>

namespace ddp::buckets {

// What planning needs to know about a parameter.
struct BucketParameter {
  std::size_t bytes = 0;
  int type = 0;        // Any number that tells element types (and devices) apart.
  bool alone = false;  // Has a bucket of its own (sparse gradients).
};

// A bucket is closed as soon as it holds at least this much, so it may be larger by nearly one
// parameter. The first bucket of each type is small, so that communication starts early in
// backward.
struct BucketLimits {
  std::size_t first_bytes = std::size_t{1} << 20;
  std::size_t other_bytes = std::size_t{25} << 20;
  // Replaces the two above: the limits of each type's first, second, ... bucket. The last one also
  // applies to all further buckets.
  std::vector<std::size_t> list = {};
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

// The same for a known order of arrival: indices into `parameters`, none twice. Parameters that are
// not in `order` are in no bucket.
std::vector<BucketLayout> plan_buckets(const std::vector<BucketParameter>& parameters,
                                       const std::vector<std::size_t>& order,
                                       const BucketLimits& limits);

// A bucket of these parameters, which have one type, in this order.
BucketLayout lay_out(const std::vector<BucketParameter>& parameters,
                     const std::vector<std::size_t>& members);

}  // namespace ddp::buckets
