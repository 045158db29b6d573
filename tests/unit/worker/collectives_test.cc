#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/collective_calls.h"
#include "tests/support/worker_world.h"

namespace ddp {
namespace {

using test::LinkKind;

// Values of very different size and full precision, so that another order of summation gives other
// bits. Every rank makes those of all ranks, so the generator is a cheap one.
template <typename T>
std::vector<T> input_of(Rank rank, std::size_t count, std::uint64_t seed) {
  std::array<double, 32> scales;
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = std::ldexp(1.0, -50 - static_cast<int>(i));
  const std::uint64_t start = test::mixed(seed * 1000 + static_cast<std::uint64_t>(rank) + 1);
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = test::mixed(start + i * 0x9e3779b97f4a7c15u);
    values[i] = static_cast<T>(static_cast<std::int64_t>(bits));
    if constexpr (std::is_floating_point_v<T>)
      values[i] *= static_cast<T>(scales[bits % scales.size()]);
  }
  return values;
}

template <typename T>
T combined(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kMin) return b < a ? b : a;
  if (op == ReduceOp::kMax) return b > a ? b : a;
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

// The definition: the first half of the ranks, a power of two of them, then the others.
template <typename T>
std::vector<T> tree_of(Rank begin, Rank end, std::size_t count, std::uint64_t seed, ReduceOp op) {
  if (end - begin == 1) return input_of<T>(begin, count, seed);
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  std::vector<T> result = tree_of<T>(begin, begin + half, count, seed, op);
  const std::vector<T> second = tree_of<T>(begin + half, end, count, seed, op);
  for (std::size_t i = 0; i < count; ++i) result[i] = combined(result[i], second[i], op);
  return result;
}

template <typename T>
std::vector<T> expected_of(int world_size, std::size_t count, std::uint64_t seed, ReduceOp op) {
  std::vector<T> result = tree_of<T>(0, world_size, count, seed, op);
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kAvg) {
      for (T& value : result) value *= static_cast<T>(1) / static_cast<T>(world_size);
    }
  }
  return result;
}

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::kU8;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kI64;
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
}

template <typename T>
Buffer buffer_of(std::vector<T>& values) {
  return {values.data(), values.size(), dtype_of<T>()};
}

template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

struct World {
  std::vector<int> nodes;
  LinkKind kind = LinkKind::kSocketPair;
};

std::string name_of_world(const World& world) {
  std::string name = test::name_of(world.kind);
  for (const int size : world.nodes) name += "_" + std::to_string(size);
  return name;
}

class Collectives : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override {
    const std::string missing = test::links_missing(GetParam().kind);
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  int world_size() const { return test::world_size_of(GetParam().nodes); }
  void with_groups(const std::function<void(ProcessGroup&)>& body) const {
    test::with_groups(GetParam().nodes, body, GetParam().kind);
  }
};

template <typename T>
void check_all_reduce(ProcessGroup& group, std::size_t count, std::uint64_t seed, ReduceOp op) {
  std::vector<T> values = input_of<T>(group.rank(), count, seed);
  group.all_reduce(buffer_of(values), op)->wait();
  EXPECT_TRUE(same_bytes(values, expected_of<T>(group.size(), count, seed, op)))
      << "rank " << group.rank() << " count " << count << " seed " << seed << " type "
      << typeid(T).name() << " op " << static_cast<int>(op.kind());
}

TEST_P(Collectives, SumOfAnySizeIsTheSumAlongTheTree) {
  const std::uint64_t seed = 20240607;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937_64 random(seed);
  std::vector<std::size_t> counts = {0,    1,    2,     15,    16,    17,    1023,
                                     1024, 1025, 32767, 32768, 32769, 65536, 131073};
  for (int i = 0; i < 12; ++i) counts.push_back(random() % 300'000);
  with_groups([&](ProcessGroup& group) {
    for (std::size_t i = 0; i < counts.size(); ++i)
      check_all_reduce<float>(group, counts[i], seed + i, ReduceOp::kSum);
  });
}

TEST_P(Collectives, EveryTypeAndOperation) {
  with_groups([&](ProcessGroup& group) {
    for (const std::size_t count : {std::size_t{7}, std::size_t{501}, std::size_t{70'001}}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
        check_all_reduce<std::uint8_t>(group, count, 1, op);
        check_all_reduce<std::int32_t>(group, count, 2, op);
        check_all_reduce<std::int64_t>(group, count, 3, op);
        check_all_reduce<float>(group, count, 4, op);
        check_all_reduce<double>(group, count, 5, op);
      }
      check_all_reduce<float>(group, count, 6, ReduceOp::kAvg);
      check_all_reduce<double>(group, count, 7, ReduceOp::kAvg);
    }
  });
}

TEST_P(Collectives, NotANumberOfAnyRankIsTheMinimumAndTheMaximum) {
  with_groups([&](ProcessGroup& group) {
    for (const std::size_t count : {std::size_t{8}, std::size_t{40'000}}) {
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        std::vector<float> values(count, static_cast<float>(group.rank()));
        const auto own = static_cast<std::size_t>(group.rank());
        values[own] = std::numeric_limits<float>::quiet_NaN();
        group.all_reduce(buffer_of(values), op)->wait();
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_EQ(std::isnan(values[i]), i < static_cast<std::size_t>(group.size())) << i;
        }
      }
    }
  });
}

TEST_P(Collectives, ManyOperationsInFlight) {
  with_groups([&](ProcessGroup& group) {
    constexpr std::size_t kOperations = 40;
    std::vector<std::vector<float>> values;
    std::vector<WorkPtr> works;
    for (std::size_t i = 0; i < kOperations; ++i) {
      values.push_back(input_of<float>(group.rank(), (i * 7919) % 90'000, i));
      works.push_back(group.all_reduce(buffer_of(values[i]), ReduceOp::kSum));
    }
    for (std::size_t i = kOperations; i-- > 0;) {
      works[i]->wait();
      EXPECT_TRUE(same_bytes(values[i],
                             expected_of<float>(group.size(), values[i].size(), i, ReduceOp::kSum)))
          << i;
    }
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  with_groups([&](ProcessGroup& group) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{4097},
          std::size_t{131'072}, std::size_t{262'145}, std::size_t{2'000'003}}) {
      for (Rank root = 0; root < group.size(); ++root) {
        auto values = input_of<std::uint8_t>(group.rank(), count, count);
        group.broadcast(buffer_of(values), root)->wait();
        EXPECT_TRUE(same_bytes(values, input_of<std::uint8_t>(root, count, count)))
            << "rank " << group.rank() << " root " << root << " count " << count;
      }
    }
  });
}

TEST_P(Collectives, AllGatherFromElsewhereAndInPlace) {
  with_groups([&](ProcessGroup& group) {
    const auto size = static_cast<std::size_t>(group.size());
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1024},
                                    std::size_t{1025}, std::size_t{300'001}}) {
      std::vector<float> expected;
      for (Rank rank = 0; rank < group.size(); ++rank) {
        const auto part = input_of<float>(rank, count, count);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      auto in = input_of<float>(group.rank(), count, count);
      std::vector<float> out(count * size, -1.0F);
      group.all_gather(buffer_of(in), buffer_of(out))->wait();
      EXPECT_TRUE(same_bytes(out, expected)) << "rank " << group.rank() << " count " << count;

      std::vector<float> again(count * size, -1.0F);
      float* slot = again.data() + static_cast<std::size_t>(group.rank()) * count;
      if (count > 0) std::memcpy(slot, in.data(), count * sizeof(float));
      group.all_gather({slot, count, DType::kF32}, buffer_of(again))->wait();
      EXPECT_TRUE(same_bytes(again, expected))
          << "in place, rank " << group.rank() << " count " << count;
    }
  });
}

TEST_P(Collectives, NobodyLeavesABarrierBeforeAllHaveEntered) {
  std::atomic<int> entered{0};
  with_groups([&](ProcessGroup& group) {
    for (int turn = 1; turn <= 50; ++turn) {
      entered.fetch_add(1);
      group.barrier()->wait();
      EXPECT_GE(entered.load(), turn * group.size());
      group.barrier()->wait();
    }
  });
}

TEST_P(Collectives, DifferentOperationsFollowEachOther) {
  const std::uint64_t seed = 7;
  with_groups([&](ProcessGroup& group) {
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i < 60; ++i) {
      const std::size_t count = random() % (i % 3 == 0 ? 200 : 100'000);
      const auto root = static_cast<Rank>(random() % static_cast<std::uint64_t>(group.size()));
      switch (random() % 4) {
        case 0:
          check_all_reduce<float>(group, count, i, ReduceOp::kAvg);
          break;
        case 1: {
          auto values = input_of<std::int64_t>(group.rank(), count, i);
          group.broadcast(buffer_of(values), root)->wait();
          EXPECT_TRUE(same_bytes(values, input_of<std::int64_t>(root, count, i)));
          break;
        }
        case 2: {
          std::vector<std::int32_t> in(count, group.rank());
          std::vector<std::int32_t> out(count * static_cast<std::size_t>(group.size()));
          group.all_gather(buffer_of(in), buffer_of(out))->wait();
          for (std::size_t k = 0; k < out.size(); ++k) {
            if (out[k] != static_cast<Rank>(k / count)) {
              ADD_FAILURE() << "element " << k << " is " << out[k];
              break;
            }
          }
          break;
        }
        default:
          group.barrier()->wait();
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Collectives,
    ::testing::Values(World{{1}}, World{{2}}, World{{3}}, World{{4}}, World{{1, 1}}, World{{2, 2}},
                      World{{1, 1, 1}}, World{{2, 1}}, World{{1, 2}}, World{{3, 2, 1}},
                      World{{1, 1}, LinkKind::kTcp}, World{{2, 2}, LinkKind::kTcp},
                      World{{1, 1, 1, 1}, LinkKind::kTcp}, World{{1, 3}, LinkKind::kTcp},
                      World{{2, 2}, LinkKind::kProven}, World{{1, 1}, LinkKind::kEncrypted},
                      World{{1, 3}, LinkKind::kEncrypted}, World{{1, 1}, LinkKind::kUcx},
                      World{{2, 2}, LinkKind::kUcx}, World{{1, 1, 1, 1}, LinkKind::kUcx},
                      World{{1, 3}, LinkKind::kUcx}),
    [](const auto& world) { return name_of_world(world.param); });

}  // namespace
}  // namespace ddp
