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
  // Only rank 0's counts although all have it, such as a buffer of batch norm: rank 0 writes it.
  bool pinned = false;
};

// Who writes what: for each item its rank. Rank 0 has what is pinned to it; the rest is dealt
// largest first, each to the rank with the fewest bytes so far, of equals to the lowest rank, items
// of equal size by name. Depends on nothing but the arguments, so every rank computes the same.
// Names are unique.
std::vector<Rank> deal_shares(std::span<const ShareItem> items, int world_size);

}  // namespace ddp::checkpoint
