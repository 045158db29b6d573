#include "worker/buckets/zero_partition.h"

#include <cstddef>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace ddp::buckets {
namespace {

using Slots = std::vector<ZeroPartition::Slot>;

TEST(ZeroPartition, EveryElementIsOneRanksOrCommon) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 200; ++round) {
    const int world = 1 + static_cast<int>(random() % 9);
    const std::size_t parameters = 1 + random() % 12;
    std::vector<Slots> buckets;
    std::vector<std::size_t> sizes;
    for (std::size_t index = 0; index < parameters; ++index) {
      if (buckets.empty() || random() % 3 == 0) buckets.emplace_back();
      sizes.push_back(random() % (round % 2 == 0 ? 20 : 40'000));
      buckets.back().push_back({index, sizes.back()});
    }
    const ZeroPartition partition(buckets, parameters, world);
    for (std::size_t index = 0; index < parameters; ++index) {
      std::size_t next = 0;
      for (Rank rank = 0; rank < world; ++rank) {
        const auto span = partition.owned(index, rank);
        if (span.count > 0) {
          ASSERT_EQ(span.begin, next);
        }
        next += span.count;
      }
      const auto common = partition.common(index);
      if (common.count > 0) {
        ASSERT_EQ(common.begin, next);
      }
      ASSERT_EQ(next + common.count, sizes[index]);
    }
  }
}

TEST(ZeroPartition, RanksHaveEqualSharesAndLittleIsCommon) {
  for (const int world : {2, 3, 4, 7}) {
    const ZeroPartition partition({{{0, 1'000'000}, {1, 37}, {2, 250'001}}}, 3, world);
    std::size_t common = 0;
    for (std::size_t index = 0; index < 3; ++index) common += partition.common(index).count;
    EXPECT_LT(common, 65U * static_cast<std::size_t>(world));
    for (Rank rank = 0; rank < world; ++rank) {
      std::size_t own = 0;
      for (std::size_t index = 0; index < 3; ++index) own += partition.owned(index, rank).count;
      EXPECT_EQ(own, partition.buckets()[0].share);
    }
    EXPECT_EQ(partition.buckets()[0].share % 16, 0U) << "whole cache lines";
  }
}

TEST(ZeroPartition, AloneARankHasEverything) {
  const ZeroPartition partition({{{1, 5}, {0, 70'001}}, {{2, 0}}}, 3, 1);
  EXPECT_EQ(partition.owned(0, 0).count, 70'001U);
  EXPECT_EQ(partition.owned(1, 0).count, 5U);
  EXPECT_EQ(partition.common(0).count, 0U);
  EXPECT_EQ(partition.place(0).offset, 5U);
  EXPECT_EQ(partition.place(2).bucket, 1U);
}

// More ranks than elements: all keep them.
TEST(ZeroPartition, WhatIsTooSmallToDivideIsCommon) {
  const ZeroPartition partition({{{0, 3}}}, 1, 4);
  EXPECT_EQ(partition.buckets()[0].share, 0U);
  EXPECT_EQ(partition.common(0).count, 3U);
}

}  // namespace
}  // namespace ddp::buckets
