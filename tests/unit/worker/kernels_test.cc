#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/unit/worker/kernels_reference.h"
#include "worker/collectives/kernels.h"
#include "worker/collectives/stream.h"

namespace ddp {
namespace {

constexpr std::size_t kRanks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
// Less than a vector, some vectors and a rest, some blocks and a rest.
constexpr std::size_t kCounts[] = {0, 1, 37, 4099};

template <typename E>
void check_every_operation(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const ReduceOp::Kind kind : test::kKinds) {
    if (!valid(E::kType, kind)) continue;
    for (const std::size_t ranks : kRanks) {
      for (const std::size_t count : kCounts) {
        const auto inputs = test::inputs_of<E>(ranks, count, random);
        std::vector<double> factors;
        for (std::size_t i = 0; kind == ReduceOp::kPremulSum && i < ranks; ++i) {
          factors.push_back(1.0 / static_cast<double>(i + 3));
        }
        const int divisor = static_cast<int>(ranks);
        const auto expected = test::expected_of<E>(kind, inputs, count, factors, divisor);
        for (const collectives::KernelTable* table : collectives::kernel_tables()) {
          test::Elements<typename E::Stored> first(count, 3), second(count, 1), third(count, 8);
          const std::vector<std::byte*> targets{first.data(), second.data(), third.data()};
          const std::size_t used = 1 + random() % 3;
          collectives::reduce_with(*table, {E::kType, E::kType, kind, divisor, factors},
                                   test::ranks_of(ranks), test::sources_of(inputs),
                                   std::span(targets).first(used), count);
          std::size_t checked = 0;
          for (const auto* target : {&first, &second, &third}) {
            if (checked++ == used) break;
            ASSERT_EQ(test::first_difference(*target, expected, count), count)
                << test::describe_case(*table, E::kType, kind, ranks, count) << ", target "
                << checked << " of " << used << ", seed " << seed;
          }
        }
      }
    }
  }
}

TEST(Kernels, EveryTypeAndOperationFollowsTheTreeOnEveryProcessor) {
  const std::uint64_t seed = 20260611;
  RecordProperty("seed", static_cast<int>(seed));
  test::for_each_element([&]<typename E>(E) { check_every_operation<E>(seed); });
}

// Cuts the tree over [begin, end) at random: the sources of a rank that holds others' sums.
void cut(std::vector<RankRange>& out, int begin, int end, std::mt19937_64& random) {
  if (end - begin == 1 || random() % 3 == 0) {
    out.push_back({begin, end});
    return;
  }
  const int middle = tree_middle(begin, end);
  cut(out, begin, middle, random);
  cut(out, middle, end, random);
}

// Each block of ranks is reduced to a partial result in the accumulator type, then these.
template <typename E, typename A>
void check_partial_results(ReduceOp::Kind kind, std::uint64_t seed) {
  constexpr std::size_t kCount = 1037;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    const std::size_t ranks = 2 + random() % 30;
    const auto inputs = test::inputs_of<E>(ranks, kCount, random);
    const auto sources = test::sources_of(inputs);
    const auto all = test::ranks_of(ranks);
    std::vector<double> factors;
    for (std::size_t i = 0; kind == ReduceOp::kPremulSum && i < ranks; ++i) {
      factors.push_back(0.7 / static_cast<double>(i + 1));
    }
    const int divisor = static_cast<int>(ranks);
    const auto expected = test::expected_of<E>(kind, inputs, kCount, factors, divisor);
    std::vector<RankRange> blocks;
    cut(blocks, 0, static_cast<int>(ranks), random);
    for (const collectives::KernelTable* table : collectives::kernel_tables()) {
      std::vector<test::Elements<typename A::Stored>> partials;
      for (const RankRange& block : blocks) {
        partials.emplace_back(kCount, random() % 9);
        const auto begin = static_cast<std::size_t>(block.begin);
        const auto size = static_cast<std::size_t>(block.size());
        std::span<const double> scaled(factors);
        if (!factors.empty()) scaled = scaled.subspan(begin, size);
        collectives::reduce_with(*table, {E::kType, A::kType, kind, 0, scaled},
                                 std::span(all).subspan(begin, size),
                                 std::span(sources).subspan(begin, size),
                                 std::vector<std::byte*>{partials.back().data()}, kCount);
      }
      test::Elements<typename E::Stored> result(kCount, 5), also(kCount, 0);
      collectives::reduce_with(*table, {A::kType, E::kType, kind, divisor}, blocks,
                               test::sources_of(partials),
                               std::vector<std::byte*>{result.data(), also.data()}, kCount);
      for (const auto* target : {&result, &also}) {
        ASSERT_EQ(test::first_difference(*target, expected, kCount), kCount)
            << test::describe_case(*table, E::kType, kind, ranks, kCount) << " in " << blocks.size()
            << " blocks, seed " << seed;
      }
    }
  }
}

TEST(Kernels, BlocksOfRanksReducedFirstGiveTheSameBits) {
  const std::uint64_t seed = 5;
  RecordProperty("seed", static_cast<int>(seed));
  for (const auto kind : {ReduceOp::kAvg, ReduceOp::kPremulSum, ReduceOp::kProd, ReduceOp::kMin}) {
    check_partial_results<test::F32, test::F32>(kind, seed);
    check_partial_results<test::F64, test::F64>(kind, seed);
    check_partial_results<test::F16, test::F32>(kind, seed);
    check_partial_results<test::BF16, test::F32>(kind, seed);
  }
}

template <typename T>
T reduced(DType type, ReduceOp::Kind kind, int divisor, const std::vector<T>& values) {
  std::vector<const std::byte*> sources;
  for (const T& value : values) sources.push_back(reinterpret_cast<const std::byte*>(&value));
  T out{};
  collectives::reduce({type, type, kind, divisor}, test::ranks_of(values.size()), sources,
                      std::vector<std::byte*>{reinterpret_cast<std::byte*>(&out)}, 1);
  return out;
}

TEST(Kernels, AnAverageIsScaledOnceAndOnlyAtTheEnd) {
  EXPECT_EQ(reduced<float>(DType::kF32, ReduceOp::kAvg, 0, {3.0F, 5.0F}), 8.0F);
  EXPECT_EQ(reduced<float>(DType::kF32, ReduceOp::kAvg, 4, {3.0F, 5.0F}), 2.0F);
  EXPECT_EQ(reduced<float>(DType::kF32, ReduceOp::kSum, 4, {3.0F, 5.0F}), 8.0F);
}

TEST(Kernels, SumsOfHalvesAreRoundedOnce) {
  // 2048 + 1 is no f16: rounded after each addition, the ones would be lost.
  const std::uint16_t large = test::nearest(test::kFloat16, 2048.0);
  const std::uint16_t one = test::nearest(test::kFloat16, 1.0);
  EXPECT_EQ(test::value_of(test::kFloat16, reduced<std::uint16_t>(DType::kF16, ReduceOp::kSum, 3,
                                                                  {large, one, one})),
            2050.0);
  // An average of numbers whose sum is no f16 is one.
  const std::uint16_t most = test::nearest(test::kFloat16, 60000.0);
  EXPECT_EQ(reduced<std::uint16_t>(DType::kF16, ReduceOp::kAvg, 2, {most, most}), most);
  EXPECT_EQ(reduced<std::uint16_t>(DType::kF16, ReduceOp::kSum, 2, {most, most}),
            test::infinity(test::kFloat16));
}

TEST(Kernels, IntegersWrap) {
  EXPECT_EQ(reduced<std::int32_t>(DType::kI32, ReduceOp::kSum, 2,
                                  {std::numeric_limits<std::int32_t>::max(), 1}),
            std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(reduced<std::int8_t>(DType::kI8, ReduceOp::kProd, 2, {100, 3}), 44);
}

TEST(Kernels, MinimumAndMaximumDoNotDependOnTheOrder) {
  const float nan = -std::numeric_limits<float>::quiet_NaN();
  for (const auto kind : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const auto& values :
         std::vector<std::vector<float>>{{nan, 1.0F}, {1.0F, nan}, {-INFINITY, nan, INFINITY}}) {
      const float result = reduced(DType::kF32, kind, 0, values);
      EXPECT_TRUE(std::isnan(result) && !std::signbit(result));
    }
    for (const auto& values : std::vector<std::vector<float>>{{0.0F, -0.0F}, {-0.0F, 0.0F}}) {
      EXPECT_EQ(std::signbit(reduced(DType::kF32, kind, 0, values)), kind == ReduceOp::kMin);
    }
  }
}

TEST(Kernels, DenormalsSurviveAThreadThatFlushesThem) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // Flush to zero, denormals are zero.
  const float least = std::numeric_limits<float>::denorm_min();
  float sum = 0.0F;
  {
    const collectives::FloatEnvironment environment;
    sum = reduced<float>(DType::kF32, ReduceOp::kSum, 2, {least, least});
  }
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040U);
  _mm_setcsr(before);
  EXPECT_GT(sum, 0.0F);
#else
  GTEST_SKIP() << "x86 only";
#endif
}

TEST(KernelsDeathTest, SourcesThatAreNoSubtreesAreABug) {
  const float value = 1.0F;
  const auto* source = reinterpret_cast<const std::byte*>(&value);
  float out = 0.0F;
  EXPECT_DEATH(
      collectives::reduce({DType::kF32, DType::kF32}, std::vector<RankRange>{{0, 1}, {1, 4}},
                          std::vector<const std::byte*>{source, source},
                          std::vector<std::byte*>{reinterpret_cast<std::byte*>(&out)}, 1),
      "tree over ranks 0..3 divides");
}

TEST(ReduceOps, AreDefinedForTheTypesThatTheySuit) {
  EXPECT_TRUE(valid(DType::kBF16, ReduceOp::kAvg));
  EXPECT_FALSE(valid(DType::kI32, ReduceOp::kAvg));
  EXPECT_FALSE(valid(DType::kU8, ReduceOp::kPremulSum));
  EXPECT_TRUE(valid(DType::kI8, ReduceOp::kBxor));
  EXPECT_FALSE(valid(DType::kF16, ReduceOp::kBand));
  EXPECT_TRUE(valid(DType::kF16, ReduceOp::kProd));
  EXPECT_EQ(ReduceOp::premul_sum(0.5).factor(), 0.5);
  EXPECT_EQ(ReduceOp::premul_sum(0.5).kind(), ReduceOp::kPremulSum);
  EXPECT_NE(ReduceOp::premul_sum(0.5), ReduceOp::premul_sum(0.25));
  EXPECT_EQ(ReduceOp(ReduceOp::kMax).factor(), 1.0);
}

TEST(Slices, CoverAChunkWithoutOverlap) {
  for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 31U, 33U, 1000U, 32768U}) {
    for (int owners = 1; owners <= 9; ++owners) {
      std::size_t end = 0;
      for (int owner = 0; owner < owners; ++owner) {
        const collectives::Slice slice = collectives::slice_of(count, owner, owners, 16);
        EXPECT_EQ(slice.begin, end);
        EXPECT_LE(slice.begin, slice.end);
        end = slice.end;
      }
      EXPECT_EQ(end, count) << owners;
    }
  }
}

}  // namespace
}  // namespace ddp
