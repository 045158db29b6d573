#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace ddp::checkpoint {

// A replicated tensor that some rank has to write.
struct ShareItem {
  std::string name;
  std::uint64_t bytes = 0;
  // Items with the same number other than 0 share their memory and go to the same rank.
  std::uint64_t storage = 0;
  // All ranks have it, but only rank 0's counts, such as a buffer of batch norm: rank 0 writes it.
  bool pinned = false;
};

// Returns, for each item, the rank that writes it. Rank 0 gets the pinned items. The rest is dealt
// largest first (by name if sizes are equal), each to the rank with the fewest bytes so far (the
// lowest if equal). Depends only on the arguments, so every rank computes the same. Names must be
// unique.
std::vector<Rank> deal_shares(std::span<const ShareItem> items, int world_size);

}  // namespace ddp::checkpoint
