#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "worker/checkpoint/tool/elements.h"

namespace ddp::checkpoint {
namespace {

template <typename T>
long double value_of(TensorType type, T bits) {
  EXPECT_EQ(sizeof bits, tensor_type_bytes(type));
  std::byte bytes[sizeof bits];
  std::memcpy(bytes, &bits, sizeof bits);
  return element_value(type, bytes);
}

TEST(Elements, WholeNumbersKeepEveryBit) {
  EXPECT_EQ(value_of(TensorType::kBool, std::uint8_t{1}), 1);
  EXPECT_EQ(value_of(TensorType::kU8, std::uint8_t{255}), 255);
  EXPECT_EQ(value_of(TensorType::kI8, std::uint8_t{255}), -1);
  EXPECT_EQ(value_of(TensorType::kI16, std::uint16_t{0x8000}), -32768);
  EXPECT_EQ(value_of(TensorType::kU16, std::uint16_t{0x8000}), 32768);
  EXPECT_EQ(value_of(TensorType::kI32, std::uint32_t{0xffffffff}), -1);
  EXPECT_EQ(value_of(TensorType::kU32, std::uint32_t{0xffffffff}), 4294967295);
  EXPECT_EQ(value_of(TensorType::kI64, INT64_MAX) - value_of(TensorType::kI64, INT64_MAX - 1), 1);
  EXPECT_EQ(value_of(TensorType::kU64, UINT64_MAX) - value_of(TensorType::kU64, UINT64_MAX - 1), 1);
}

TEST(Elements, SmallFloatsAreThoseOfTheirFormats) {
  EXPECT_EQ(value_of(TensorType::kF16, std::uint16_t{0x3c00}), 1);
  EXPECT_EQ(value_of(TensorType::kF16, std::uint16_t{0xc000}), -2);
  EXPECT_EQ(value_of(TensorType::kF16, std::uint16_t{0x7bff}), 65504);
  EXPECT_EQ(value_of(TensorType::kF16, std::uint16_t{1}), std::ldexp(1.0L, -24));
  EXPECT_TRUE(std::isinf(value_of(TensorType::kF16, std::uint16_t{0x7c00})));
  EXPECT_TRUE(std::isnan(value_of(TensorType::kF16, std::uint16_t{0x7c01})));
  EXPECT_EQ(value_of(TensorType::kF8E5M2, std::uint8_t{0x7b}), 57344);
  EXPECT_TRUE(std::isinf(value_of(TensorType::kF8E5M2, std::uint8_t{0xfc})));
  EXPECT_EQ(value_of(TensorType::kF8E4M3, std::uint8_t{0x7e}), 448);
  EXPECT_EQ(value_of(TensorType::kF8E4M3, std::uint8_t{0x01}), std::ldexp(1.0L, -9));
  EXPECT_TRUE(std::isnan(value_of(TensorType::kF8E4M3, std::uint8_t{0x7f})));
}

TEST(Elements, EveryBFloat16IsTheFloatOfItsBits) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto expected = std::bit_cast<float>(bits << 16);
    const long double value = value_of(TensorType::kBF16, static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, static_cast<long double>(expected)) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    }
  }
}

TensorDifference compare(const std::vector<float>& a, const std::vector<float>& b) {
  return compare_tensors(TensorType::kF32, std::as_bytes(std::span(a)),
                         std::as_bytes(std::span(b)));
}

TEST(Elements, ComparesBitsAndMeasuresNumbers) {
  const float nan = std::nanf("");
  EXPECT_EQ(compare({}, {}).elements, 0u);
  EXPECT_EQ(compare({1, nan}, {1, nan}).elements, 0u);
  const TensorDifference signs = compare({1, 0.0f}, {1, -0.0f});
  EXPECT_EQ(signs.elements, 1u);
  EXPECT_EQ(signs.largest, 0);
  EXPECT_EQ(signs.largest_at, 1u);
  const TensorDifference some = compare({1, 2, 3, 4}, {1, 2.5f, 1, 4.25f});
  EXPECT_EQ(some.elements, 3u);
  EXPECT_EQ(some.largest, 2);
  EXPECT_EQ(some.largest_at, 2u);
  const TensorDifference lost = compare({1, 2, 9}, {2, nan, 0});
  EXPECT_EQ(lost.elements, 3u);
  EXPECT_TRUE(std::isinf(lost.largest));
  EXPECT_EQ(lost.largest_at, 1u);
}

}  // namespace
}  // namespace ddp::checkpoint
