#include "tests/torch/rank_threads.h"

#include <cstddef>
#include <exception>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/worker_world.h"

namespace ddp::test {
namespace {

// Sums of a convolution depend on how many threads make them, and each thread has a number of its
// own: the test's, set here, and the ranks', set below.
[[maybe_unused]] const bool kOneThread = (at::set_num_threads(1), true);

}  // namespace

void run_ranks(const std::vector<int>& node_sizes, const std::function<void(GroupPtr)>& body) {
  const auto groups = thread_groups(node_sizes);
  on_ranks(world_size_of(node_sizes), [&](Rank rank) {
    at::set_num_threads(1);
    const GroupPtr& group = groups[static_cast<std::size_t>(rank)];
    try {
      body(group);
    } catch (const std::exception& error) {
      group->abort(error.what());
      throw;
    }
  });
}

}  // namespace ddp::test
