#include "worker/collectives/half.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/unit/worker/half_reference.h"
#include "worker/collectives/kernel_table.h"

namespace ddp::collectives {
namespace {

struct Case {
  DType type;
  test::HalfFormat format;
};
const Case kCases[] = {{DType::kF16, test::kFloat16}, {DType::kBF16, test::kBFloat16}};

std::vector<float> widened(const KernelTable& table, DType type,
                           const std::vector<std::uint16_t>& halves) {
  std::vector<float> floats(halves.size());
  table.widen[static_cast<std::size_t>(type)](reinterpret_cast<std::byte*>(floats.data()),
                                              reinterpret_cast<const std::byte*>(halves.data()),
                                              halves.size());
  return floats;
}

std::vector<std::uint16_t> narrowed(const KernelTable& table, DType type,
                                    const std::vector<float>& floats) {
  std::vector<std::uint16_t> halves(floats.size());
  table.narrow[static_cast<std::size_t>(type)](reinterpret_cast<std::byte*>(halves.data()),
                                               reinterpret_cast<const std::byte*>(floats.data()),
                                               floats.size());
  return halves;
}

TEST(Half, EveryValueWidensExactlyAndComesBack) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const Case& half : kCases) {
    for (const KernelTable* table : kernel_tables()) {
      const std::vector<float> wide = widened(*table, half.type, all);
      const std::vector<std::uint16_t> back = narrowed(*table, half.type, wide);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const double exact = test::value_of(half.format, all[i]);
        if (std::isnan(exact)) {
          ASSERT_TRUE(std::isnan(wide[i])) << table->name << " " << i;
          ASSERT_EQ(back[i], test::quiet_nan(half.format)) << table->name << " " << i;
        } else {
          ASSERT_EQ(exact, static_cast<double>(wide[i])) << table->name << " " << i;
          ASSERT_EQ(std::signbit(exact), std::signbit(wide[i])) << table->name << " " << i;
          ASSERT_EQ(back[i], all[i]) << table->name << " " << i;
        }
      }
    }
  }
}

// Each value, the middle between it and the next, and the floats next to both; also beyond the
// largest value, where the next would be if there were no infinity.
std::vector<float> around_every_value(const test::HalfFormat& format) {
  std::vector<float> floats;
  for (std::uint32_t bits = 0; bits < test::infinity(format); ++bits) {
    const double low = test::value_of(format, static_cast<std::uint16_t>(bits));
    const double high = test::magnitude_of(format, bits + 1);
    for (const double point : {low, (low + high) / 2}) {
      const auto nearest = static_cast<float>(point);
      for (const float value : {std::nextafterf(nearest, -1.0F), nearest,
                                std::nextafterf(nearest, std::numeric_limits<float>::infinity())}) {
        floats.push_back(value);
        floats.push_back(-value);
      }
    }
  }
  return floats;
}

TEST(Half, RoundsToNearestAndTiesToEven) {
  const std::uint32_t seed = 77;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  for (const Case& half : kCases) {
    std::vector<float> floats = around_every_value(half.format);
    for (int i = 0; i < 200'000; ++i) {
      floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    }
    floats.push_back(std::numeric_limits<float>::infinity());
    floats.push_back(-std::numeric_limits<float>::infinity());
    floats.push_back(std::numeric_limits<float>::max());
    floats.push_back(std::numeric_limits<float>::denorm_min());
    std::vector<std::uint16_t> expected;
    for (const float value : floats) expected.push_back(test::nearest(half.format, value));
    for (const KernelTable* table : kernel_tables()) {
      const std::vector<std::uint16_t> halves = narrowed(*table, half.type, floats);
      for (std::size_t i = 0; i < floats.size(); ++i) {
        ASSERT_EQ(halves[i], expected[i])
            << table->name << " " << std::hexfloat << floats[i] << " seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace ddp::collectives
