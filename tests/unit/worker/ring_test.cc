#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/running_call.h"
#include "tests/support/worker_world.h"

// all_reduce along the ring, which is normally chosen only for many nodes. The ring has its own
// order of summation, so the test compares only operations whose result does not depend on the
// order.
namespace ddp {
namespace {

using test::Call;
using test::CallMemory;
using test::CallShape;
using test::RunningCall;

class Rings : public ::testing::TestWithParam<int> {
 protected:
  void on_ring(const std::function<void(ProcessGroup&)>& body) const {
    test::with_groups(std::vector<int>(static_cast<std::size_t>(GetParam()), 1),
                      [&](ProcessGroup& group) {
                        collectives::CostTable costs;
                        costs.forced_in_node =
                            collectives::Algorithm::kStaged;  // So nothing is too small for it.
                        costs.forced_between = collectives::Algorithm::kRing;
                        static_cast<runtime::Group&>(group).choose(collectives::Choice(costs));
                        body(group);
                      });
  }
};

const std::vector<std::size_t> kCounts = {0, 1, 2, 3, 17, 1000, 1001, 70'003, 300'000};

TEST_P(Rings, IntegersAndExtremesOfAnySize) {
  on_ring([](ProcessGroup& group) {
    CallMemory memory(group, std::size_t{4} << 20);
    std::uint64_t seed = 0;
    for (const std::size_t count : kCounts) {
      for (const auto kind : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kBxor}) {
        for (const DType type : {DType::kI64, DType::kU8}) {
          const CallShape shape{Call::kAllReduce, type, kind, count, 0, ++seed, false};
          memory.clear();
          RunningCall(group, shape, test::answer_of(shape, group.size()), memory, seed % 2 == 0)
              .check();
        }
      }
      const CallShape shape{Call::kAllReduce, DType::kBF16, ReduceOp::kMin, count, 0,
                            ++seed,           false};
      memory.clear();
      RunningCall(group, shape, test::answer_of(shape, group.size()), memory, false).check();
    }
  });
}

// Small whole numbers, whose sums no order rounds.
TEST_P(Rings, SumsAveragesAndFactors) {
  on_ring([](ProcessGroup& group) {
    const auto size = static_cast<float>(group.size());
    for (const std::size_t count : kCounts) {
      for (const auto kind : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
        const auto own = static_cast<float>(group.rank());
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000) + own;
        // The factor differs between ranks: 1, 2, 4, ...
        const ReduceOp op = kind == ReduceOp::kPremulSum
                                ? ReduceOp::premul_sum(std::ldexp(1.0, group.rank()))
                                : ReduceOp(kind);
        group.all_reduce({values.data(), count, DType::kF32}, op)->wait();
        for (std::size_t i = 0; i < count; ++i) {
          float expected = 0;
          for (float rank = 0; rank < size; ++rank) {
            const float factor = kind == ReduceOp::kPremulSum ? std::exp2(rank) : 1.0F;
            expected += factor * (static_cast<float>(i % 1000) + rank);
          }
          if (kind == ReduceOp::kAvg) expected *= 1.0F / size;
          ASSERT_EQ(values[i], expected) << "element " << i << " of " << count << ", "
                                         << name_of(kind) << ", rank " << group.rank();
        }
      }
    }
  });
}

// Running sums of such values are infinite in f16.
TEST_P(Rings, AnAverageOfF16IsFiniteWhereItsSumIsNot) {
  on_ring([](ProcessGroup& group) {
    constexpr std::uint16_t k40000 = 0x78E2;
    std::vector<std::uint16_t> values(1001, k40000);
    group.all_reduce({values.data(), values.size(), DType::kF16}, ReduceOp::kAvg)->wait();
    EXPECT_EQ(values, std::vector<std::uint16_t>(1001, k40000));
  });
}

TEST_P(Rings, AllRanksHaveTheSameBitsInEveryRun) {
  on_ring([](ProcessGroup& group) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
      const CallShape shape{Call::kAllReduce, type, ReduceOp::kSum, 30'011, 0, 77, false};
      std::vector<std::byte> first;
      for (int run = 0; run < 3; ++run) {
        std::vector<std::byte> values = test::call_input(shape, group.rank(), shape.count);
        group.all_reduce({values.data(), shape.count, type}, ReduceOp::kSum)->wait();
        std::vector<std::byte> all(values.size() * static_cast<std::size_t>(group.size()));
        group
            .all_gather({values.data(), values.size(), DType::kU8},
                        {all.data(), all.size(), DType::kU8})
            ->wait();
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(group.size()); ++rank) {
          EXPECT_EQ(std::memcmp(all.data() + rank * values.size(), values.data(), values.size()), 0)
              << name_of(type) << ", rank " << rank;
        }
        if (run == 0) first = values;
        EXPECT_EQ(values, first) << name_of(type) << ", run " << run;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Nodes, Rings, ::testing::Values(2, 3, 4, 7));

}  // namespace
}  // namespace ddp
