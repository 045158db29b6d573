#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/runtime/process_group.h"

namespace ddp::test {

// Runs `body` once for each rank, each in a process of its own with the environment, the shared
// memory of its node and the store that ddp-run would give it, on a group that comes from that
// environment. Returns what each body returned, by rank. An exception in a body fails the test with
// its text, and its result is empty. node_sizes: {2, 1} means a node of two and a node of one,
// which reach each other by TCP over loopback.
//
// Call it from a process without threads: LibTorch's threads do not survive a fork.
std::vector<std::string> run_workers(
    const std::vector<int>& node_sizes,
    const std::function<std::string(const std::shared_ptr<ProcessGroup>&)>& body);

}  // namespace ddp::test
