#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddp::check {

// The word with which ddp-run starts itself as the worker of each node of a check.
inline constexpr const char* kNodeCommand = "check-node";

// `ddp-run check-node [--json] [--check-dir DIR] [--address ADDRESS]`: looks at this node, meets
// the other nodes through the store of the job, and prints what all have found if it has rank 0.
// Nothing if the line is not that; otherwise the exit status.
std::optional<int> run_check_node(const std::vector<std::string>& arguments);

}  // namespace ddp::check
