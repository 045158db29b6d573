#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddp::hosts {

// A host's part in a job.
struct NodePlace {
  std::string host;    // As the launch agent takes it; unique in the job.
  int slots = 0;       // Workers there; 0: see the flags.
  int node_rank = -1;  // -1: none asked for.

  bool operator==(const NodePlace&) const = default;
};

// A process starts at most this many others itself. With more hosts, each of those starts a share
// of the rest. A thousand hosts make two levels.
inline constexpr std::size_t kFanOut = 32;

// Cuts the places into at most `fan_out` groups of nearly the same size, in order. The first host
// of each group is started from here, and starts the rest of its group.
std::vector<std::vector<NodePlace>> split_for_launch(const std::vector<NodePlace>& places,
                                                     std::size_t fan_out = kFanOut);

}  // namespace ddp::hosts
