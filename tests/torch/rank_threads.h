#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/runtime/process_group.h"

namespace ddp::test {

using GroupPtr = std::shared_ptr<ProcessGroup>;

// Runs `body` once for each rank of a world, each on its own thread with its group. node_sizes: {2,
// 1} means a node of two ranks and a node of one. LibTorch uses one thread in each of them, and in
// the test. An exception that leaves a body fails the test with its text and aborts the others.
void run_ranks(const std::vector<int>& node_sizes, const std::function<void(GroupPtr)>& body);

}  // namespace ddp::test
