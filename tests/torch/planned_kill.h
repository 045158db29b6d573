#pragma once

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace ddp::test {

// Before update `step`, rank `rank` makes the file `mark` and kills itself, unless it exists.
struct PlannedKill {
  std::int64_t step;
  Rank rank;
  std::string mark;
};

// From STEP RANK MARK and so on, behind the first arguments.
inline std::vector<PlannedKill> planned_kills(const std::vector<std::string>& given,
                                              std::size_t first) {
  std::vector<PlannedKill> kills;
  for (std::size_t i = first; i + 2 < given.size(); i += 3) {
    kills.push_back({std::stoll(given[i]), std::stoi(given[i + 1]), given[i + 2]});
  }
  return kills;
}

inline void kill_if_due(const std::vector<PlannedKill>& kills, std::int64_t step, Rank rank) {
  for (const PlannedKill& kill : kills) {
    if (kill.step != step || kill.rank != rank || std::filesystem::exists(kill.mark)) continue;
    std::ofstream(kill.mark) << step;
    ::raise(SIGKILL);
  }
}

}  // namespace ddp::test
