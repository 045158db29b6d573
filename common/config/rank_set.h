#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace ddp::config {

// Ranks as people write and read them: "0,8-15".
struct RankSet {
  struct Range {
    Rank first = 0;
    Rank last = 0;  // Included.

    friend bool operator==(const Range&, const Range&) = default;
  };
  std::vector<Range> ranges;  // In the order written; they may overlap.

  bool empty() const { return ranges.empty(); }
  bool contains(Rank rank) const;

  friend bool operator==(const RankSet&, const RankSet&) = default;
};

// `text` has at least one number or range. The message of kInvalidArgument says what would be
// right, but does not name the flag.
Result<RankSet> parse_rank_set(std::string_view text);

}  // namespace ddp::config
