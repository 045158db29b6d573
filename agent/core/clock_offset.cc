#include "agent/core/clock_offset.h"

#include <algorithm>

namespace ddp::agent {

void ClockOffset::exchange(std::int64_t left, std::int64_t arrived, std::int64_t answered,
                           std::int64_t back) {
  latest_[count_++ % latest_.size()] = {(back - left) - (answered - arrived),
                                        ((arrived - left) + (answered - back)) / 2};
  const auto known =
      latest_.begin() + static_cast<std::ptrdiff_t>(std::min(count_, latest_.size()));
  ahead_ = std::min_element(latest_.begin(), known, [](const Exchange& a, const Exchange& b) {
             return a.under_way < b.under_way;
           })->ahead;
}

}  // namespace ddp::agent
