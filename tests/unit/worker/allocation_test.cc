// A steady state of operations allocates nothing, on any thread of the process.
#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/allocations.h"
#include "tests/support/worker_world.h"
#include "worker/runtime/process_group.h"

namespace ddp {
namespace {

using test::thread_groups;
using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

constexpr std::size_t kMost = std::size_t{3} << 17;  // Elements: several chunks and pieces.
constexpr int kWarm = 8;
constexpr int kSteady = 40;  // More than any queue's block holds.

struct Memory {
  explicit Memory(ProcessGroup& group)
      : registered(group.allocate(kMost * sizeof(float))), own(kMost, 1.0F) {}
  std::shared_ptr<std::byte> registered;
  std::vector<float> own;
  SharedText tag{"a bucket with a rather long name (layer1.weight .. layer4.bias)"};
};

struct Case {
  std::string name;
  WorkPtr (*issue)(ProcessGroup& group, Memory& memory, bool synchronous);
};
std::ostream& operator<<(std::ostream& out, const Case& each) { return out << each.name; }

OpOptions with(const Memory& memory, bool synchronous) {
  return {.timeout = {}, .tag = memory.tag, .synchronous = synchronous};
}

const Case kCases[] = {
    {"all_reduce of 16 bytes",
     [](ProcessGroup& group, Memory& memory, bool synchronous) {
       return group.all_reduce({memory.own.data(), 4, DType::kF32}, ReduceOp::kAvg,
                               with(memory, synchronous));
     }},
    {"all_reduce of private memory",
     [](ProcessGroup& group, Memory& memory, bool synchronous) {
       return group.all_reduce({memory.own.data(), kMost, DType::kF32}, ReduceOp::kAvg,
                               with(memory, synchronous));
     }},
    {"all_reduce of registered memory",
     [](ProcessGroup& group, Memory& memory, bool synchronous) {
       return group.all_reduce({memory.registered.get(), kMost, DType::kF32}, ReduceOp::kSum,
                               with(memory, synchronous));
     }},
    {"reduce_scatter",
     [](ProcessGroup& group, Memory& memory, bool synchronous) {
       const std::size_t each = kMost / 8;
       return group.reduce_scatter(
           {memory.own.data(), each * static_cast<std::size_t>(group.size()), DType::kF32},
           {memory.registered.get(), each, DType::kF32}, ReduceOp::kSum, with(memory, synchronous));
     }},
    {"broadcast",
     [](ProcessGroup& group, Memory& memory, bool synchronous) {
       return group.broadcast({memory.own.data(), kMost, DType::kF32}, 0,
                              with(memory, synchronous));
     }},
    {"all_gather",
     [](ProcessGroup& group, Memory& memory, bool synchronous) {
       const std::size_t each = kMost / 8;
       return group.all_gather(
           {memory.own.data(), each, DType::kF32},
           {memory.registered.get(), each * static_cast<std::size_t>(group.size()), DType::kF32},
           with(memory, synchronous));
     }},
    {"barrier", [](ProcessGroup& group, Memory& memory,
                   bool synchronous) { return group.barrier(with(memory, synchronous)); }},
};

class Allocations : public testing::TestWithParam<std::vector<int>> {};

TEST_P(Allocations, AreNoneInASteadyState) {
  if (!test::allocations::kCounting) GTEST_SKIP() << "a sanitizer has its own malloc";
  const Groups groups = thread_groups(GetParam());
  const int world = test::world_size_of(GetParam());
  for (const Case& each : kCases) {
    for (const bool synchronous : {false, true}) {
      long counted = -1;
      test::on_ranks(world, [&](Rank rank) {
        ProcessGroup& group = *groups[static_cast<std::size_t>(rank)];
        Memory memory(group);
        ASSERT_NE(memory.registered, nullptr);
        // More at once than the communication thread can make of two.
        std::vector<WorkPtr> works;
        for (int i = 0; i < kWarm; ++i) works.push_back(each.issue(group, memory, synchronous));
        for (const WorkPtr& work : works) work->wait();
        works.clear();
        group.barrier()->wait();
        if (rank == 0) test::allocations::arm();
        group.barrier()->wait();
        for (int i = 0; i < kSteady; ++i) {
          // Two at a time, so that one of them waits in the queue.
          const WorkPtr first = each.issue(group, memory, synchronous);
          each.issue(group, memory, synchronous)->wait();
          first->wait();
        }
        group.barrier()->wait();
        if (rank == 0) counted = test::allocations::disarm();
        group.barrier()->wait();
      });
      EXPECT_EQ(counted, 0) << each << ", synchronous " << synchronous;
      if (counted != 0) test::allocations::print_own();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Allocations,
                         testing::Values(std::vector<int>{1}, std::vector<int>{2},
                                         std::vector<int>{1, 1}, std::vector<int>{2, 1}),
                         [](const auto& world) {
                           std::string name = "Of";
                           for (const int size : world.param) name += "_" + std::to_string(size);
                           return name;
                         });

}  // namespace
}  // namespace ddp
