#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string_view>

#include "common/base/line_assembler.h"

namespace ddp::server {

// Counts the steps in a trace's events, until every rank has ended enough. How many ranks there
// are, the events say (TraceFeed). Of ranks that end none (some programs report their progress on
// rank 0 only), the count makes up its mind once others have ended four times as many, over three
// seconds. Ranks that a smaller round has not got do not count any more.
class StepCount {
 public:
  // wanted: 0 for no limit.
  explicit StepCount(std::size_t wanted) : wanted_(wanted) {}

  // Any part of the events, as it comes.
  void take(std::string_view events);
  bool is_reached() const;
  std::size_t wanted() const { return wanted_; }
  // As the events say; 0: they have not said yet.
  std::size_t ranks() const { return ranks_; }
  // Of the rank that has ended fewest, or of all that are known to end any.
  std::size_t fewest() const;

 private:
  void take_line(std::string_view line);

  std::size_t wanted_;
  LineAssembler lines_;
  std::size_t ranks_ = 0;                        // As the events say.
  std::map<std::size_t, std::size_t> steps_of_;  // By the number of the rank's process.
  // When the first and the last of these began.
  std::uint64_t first_us_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t last_us_ = 0;
};

}  // namespace ddp::server
