#include "tests/torch/rank_threads.h"

#include <cstddef>
#include <exception>

#include <gtest/gtest.h>

#include "tests/support/worker_world.h"

namespace ddp::test {

void run_ranks(const std::vector<int>& node_sizes, const std::function<void(GroupPtr)>& body) {
  const auto groups = thread_groups(node_sizes);
  on_ranks(world_size_of(node_sizes), [&](Rank rank) {
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
