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

#include "worker/collectives/kernels.h"
#include "worker/collectives/stream.h"

namespace ddp {
namespace {

std::byte* bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

std::vector<std::vector<float>> inputs_of(std::size_t ranks, std::size_t count) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> mantissa(-1.0F, 1.0F);
  std::vector<std::vector<float>> inputs(ranks, std::vector<float>(count));
  for (auto& input : inputs) {
    for (float& value : input)
      value = std::ldexp(mantissa(random), static_cast<int>(random() % 40) - 20);
  }
  return inputs;
}

// Volatile, so that the compiler can neither reorder nor widen what the test takes for the
// definition.
std::vector<float> definition(const std::vector<std::vector<float>>& inputs, int divisor) {
  std::vector<float> result(inputs[0].size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    volatile float sum = inputs[0][i];
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) sum = sum + inputs[rank][i];
    if (divisor > 0) sum = sum * (1.0F / static_cast<float>(divisor));
    result[i] = sum;
  }
  return result;
}

TEST(Kernels, AddInRankOrderAtEverySizeAndPlacement) {
  for (const std::size_t ranks : {1U, 2U, 3U, 5U, 8U}) {
    for (const std::size_t count : {0U, 1U, 3U, 16U, 17U, 2047U, 2048U, 2049U, 10'001U}) {
      auto inputs = inputs_of(ranks, count);
      const auto expected = definition(inputs, static_cast<int>(ranks));
      std::vector<const std::byte*> sources;
      for (auto& input : inputs) sources.push_back(bytes(input));
      const Reduction average{DType::kF32, ReduceOp::kAvg, static_cast<int>(ranks)};

      std::vector<float> elsewhere(count);
      reduce(average, bytes(elsewhere), nullptr, sources, count);
      EXPECT_EQ(0, count == 0
                       ? 0
                       : std::memcmp(elsewhere.data(), expected.data(), count * sizeof(float)));

      // The second copy may go to any source.
      auto also = inputs_of(ranks, count);
      sources.clear();
      for (auto& input : also) sources.push_back(bytes(input));
      reduce(average, bytes(elsewhere), bytes(also[ranks / 2]), sources, count);
      EXPECT_EQ(also[ranks / 2], expected);

      reduce(
          average, bytes(inputs[0]), nullptr,
          [&] {
            sources[0] = bytes(inputs[0]);
            for (std::size_t rank = 1; rank < ranks; ++rank) sources[rank] = bytes(inputs[rank]);
            return sources;
          }(),
          count);
      EXPECT_EQ(inputs[0], expected) << "in place, " << ranks << " ranks, " << count;
    }
  }
}

TEST(Kernels, AnAverageIsScaledOnceAndOnlyAtTheEnd) {
  std::vector<float> a{1.0F, 3.0F};
  std::vector<float> b{2.0F, 5.0F};
  std::vector<float> out(2);
  const std::vector<const std::byte*> sources{bytes(a), bytes(b)};
  reduce({DType::kF32, ReduceOp::kAvg, 0}, bytes(out), nullptr, sources, 2);
  EXPECT_EQ(out, (std::vector<float>{3.0F, 8.0F}));
  reduce({DType::kF32, ReduceOp::kAvg, 4}, bytes(out), nullptr, sources, 2);
  EXPECT_EQ(out, (std::vector<float>{0.75F, 2.0F}));
}

TEST(Kernels, IntegersWrap) {
  std::vector<std::int32_t> a{std::numeric_limits<std::int32_t>::max()};
  std::vector<std::int32_t> b{1};
  std::int32_t out = 0;
  const std::vector<const std::byte*> sources{reinterpret_cast<std::byte*>(a.data()),
                                              reinterpret_cast<std::byte*>(b.data())};
  reduce({DType::kI32, ReduceOp::kSum, 2}, reinterpret_cast<std::byte*>(&out), nullptr, sources, 1);
  EXPECT_EQ(out, std::numeric_limits<std::int32_t>::min());
}

TEST(Kernels, DenormalsSurviveAThreadThatFlushesThem) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // Flush to zero, denormals are zero.
  std::vector<float> a{std::numeric_limits<float>::denorm_min()};
  std::vector<float> b{std::numeric_limits<float>::denorm_min()};
  std::vector<float> out(1);
  {
    const FloatEnvironment environment;
    reduce({DType::kF32, ReduceOp::kSum, 2}, bytes(out), nullptr,
           std::vector<const std::byte*>{bytes(a), bytes(b)}, 1);
  }
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040U);
  _mm_setcsr(before);
  EXPECT_GT(out[0], 0.0F);
#else
  GTEST_SKIP() << "x86 only";
#endif
}

TEST(Slices, CoverAChunkWithoutOverlap) {
  for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 31U, 33U, 1000U, 32768U}) {
    for (int owners = 1; owners <= 9; ++owners) {
      std::size_t end = 0;
      for (int owner = 0; owner < owners; ++owner) {
        const Slice slice = slice_of(count, owner, owners, 16);
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
