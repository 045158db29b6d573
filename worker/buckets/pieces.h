#pragma once

#include <cstddef>
#include <vector>

#include "worker/buckets/plan.h"

namespace ddp::buckets {

// A run of one bucket's slots that is reduced by an operation of its own, as soon as its gradients
// are there. Elements are summed independently, so cutting a bucket changes no bit of the result.
// It lets most of a large bucket be reduced while the rest is still being computed. A bucket that
// must be reduced as a whole (for a communication hook) is one piece.
struct BucketPiece {
  std::size_t bucket = 0;      // Index into the buckets that were cut.
  std::size_t first_slot = 0;  // Of the bucket.
  std::size_t slots = 0;
  std::size_t offset_bytes = 0;  // In the bucket.
  std::size_t bytes = 0;
};

struct PieceLimits {
  // A piece is closed as soon as it holds at least this much: large enough that an operation's
  // fixed cost does not matter, small enough that the network need not wait.
  std::size_t most_bytes = std::size_t{4} << 20;
  // Towards the end of backward pieces shrink to a quarter of what is left, but not below this:
  // nothing hides the last one.
  std::size_t least_bytes = std::size_t{256} << 10;
};

// Cuts buckets, given in the order of their reduction; is_whole[i] keeps bucket i in one piece. A
// slot is never cut. The result depends on the arguments alone, so ranks with equal buckets agree.
std::vector<BucketPiece> cut_into_pieces(const std::vector<BucketLayout>& buckets,
                                         const std::vector<bool>& is_whole,
                                         const PieceLimits& limits);

// The piece as a layout: its slots, with their offsets in the bucket, and its bytes.
BucketLayout layout_of(const BucketPiece& piece, const std::vector<BucketLayout>& buckets);

}  // namespace ddp::buckets
