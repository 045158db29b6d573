#include "worker/buckets/pieces.h"

#include <algorithm>

#include "common/base/check.h"

namespace ddp::buckets {

std::vector<BucketPiece> cut_into_pieces(const std::vector<BucketLayout>& buckets,
                                         const std::vector<bool>& is_whole,
                                         const PieceLimits& limits) {
  DDP_CHECK(is_whole.size() == buckets.size(), "{} flags for {} buckets", is_whole.size(),
            buckets.size());
  std::size_t left = 0;  // From the beginning of the open piece to the end of backward.
  for (const BucketLayout& bucket : buckets) left += bucket.bytes;
  std::vector<BucketPiece> pieces;
  for (std::size_t index = 0; index < buckets.size(); ++index) {
    const std::vector<BucketSlot>& slots = buckets[index].slots;
    BucketPiece piece{index, 0, 0, 0, 0};
    const auto close = [&](std::size_t next_slot, std::size_t end_bytes) {
      piece.slots = next_slot - piece.first_slot;
      piece.bytes = end_bytes - piece.offset_bytes;
      left -= piece.bytes;
      pieces.push_back(piece);
      piece = {index, next_slot, 0, end_bytes, 0};
    };
    for (std::size_t slot = 0; slot + 1 < slots.size() && !is_whole[index]; ++slot) {
      const std::size_t end = slots[slot + 1].offset_bytes;
      const std::size_t limit = std::min(limits.most_bytes, std::max(limits.least_bytes, left / 4));
      if (end - piece.offset_bytes >= limit) close(slot + 1, end);
    }
    close(slots.size(), buckets[index].bytes);
  }
  return pieces;
}

BucketLayout layout_of(const BucketPiece& piece, const std::vector<BucketLayout>& buckets) {
  const BucketLayout& bucket = buckets[piece.bucket];
  const auto first = bucket.slots.begin() + static_cast<std::ptrdiff_t>(piece.first_slot);
  return {bucket.type, piece.bytes, {first, first + static_cast<std::ptrdiff_t>(piece.slots)}};
}

}  // namespace ddp::buckets
