#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "worker/buckets/bucket_progress.h"
#include "worker/buckets/pieces.h"
#include "worker/buckets/plan.h"

namespace ddp::buckets {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::vector<std::vector<std::size_t>> members(const std::vector<BucketLayout>& buckets) {
  std::vector<std::vector<std::size_t>> result;
  for (const BucketLayout& bucket : buckets) {
    result.emplace_back();
    for (const BucketSlot& slot : bucket.slots) result.back().push_back(slot.parameter);
  }
  return result;
}

using Members = std::vector<std::vector<std::size_t>>;

TEST(PlanBuckets, ReverseOrderWithASmallFirstBucketThatClosesAtItsLimit) {
  const std::vector<BucketParameter> parameters = {
      {10 * kMiB, 0}, {20 * kMiB, 0}, {kMiB / 2, 0}, {kMiB / 2, 0}};
  const auto buckets = plan_buckets(parameters, {});
  EXPECT_EQ(members(buckets), (Members{{3, 2}, {1, 0}}));
  EXPECT_EQ(buckets[0].bytes, kMiB);
  EXPECT_EQ(buckets[1].bytes, 30 * kMiB);
  EXPECT_EQ(buckets[1].slots[1].offset_bytes, 20 * kMiB);
}

TEST(PlanBuckets, AParameterLargerThanTheLimitIsNotSplit) {
  const auto buckets = plan_buckets({{4, 0}, {100 * kMiB, 0}, {4, 0}}, {1, 25 * kMiB});
  EXPECT_EQ(members(buckets), (Members{{2}, {1}, {0}}));
}

TEST(PlanBuckets, OneTypeABucketAndTheBucketThatFillsFirstComesFirst) {
  // Types alternate; the bucket of type 1 waits for parameter 1, that of type 0 for parameter 0.
  const auto buckets = plan_buckets({{4, 0}, {8, 1}, {4, 0}, {8, 1}}, {});
  EXPECT_EQ(members(buckets), (Members{{3, 1}, {2, 0}}));
  EXPECT_EQ(buckets[0].type, 1);
  EXPECT_EQ(buckets[1].type, 0);
}

TEST(PlanBuckets, AGivenOrderDecidesAndWhatIsNotInItHasNoBucket) {
  const std::vector<BucketParameter> parameters(5, {4, 0});
  EXPECT_EQ(members(plan_buckets(parameters, {3, 0, 4, 1}, {8, 8})), (Members{{3, 0}, {4, 1}}));
  // Buckets come in the order of their last arrivals, also where types alternate.
  EXPECT_EQ(members(plan_buckets({{4, 0}, {4, 1}, {4, 0}, {4, 1}}, {0, 1, 3, 2}, {100, 100})),
            (Members{{1, 3}, {0, 2}}));
}

TEST(PlanBuckets, AListHasALimitForEachBucketOfATypeAndTheLastOneRepeats) {
  const std::vector<BucketParameter> parameters(9, {4, 0});
  EXPECT_EQ(members(plan_buckets(parameters, {1, 1, {4, 12, 8}})),
            (Members{{8}, {7, 6, 5}, {4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(members(plan_buckets({{4, 0}, {4, 0}, {4, 1}, {4, 1}}, {1, 1, {4, 100}})),
            (Members{{3}, {2}, {1}, {0}}));
}

TEST(PlanBuckets, WhatMustBeAloneIsAndDoesNotCloseTheBucketAroundIt) {
  const auto buckets = plan_buckets({{4, 0}, {4, 0, true}, {4, 0}}, {100, 100});
  EXPECT_EQ(members(buckets), (Members{{1}, {2, 0}}));
}

TEST(PlanBucketsDeathTest, AParameterTwiceInTheOrderIsABrokenInvariant) {
  EXPECT_DEATH(plan_buckets({{4, 0}, {4, 0}}, {1, 1}, {}), "twice or out of range");
  EXPECT_DEATH(lay_out({{4, 0}, {4, 1}}, {0, 1}), "but its bucket type");
}

TEST(PlanBuckets, NothingToPlan) { EXPECT_TRUE(plan_buckets({}, {}).empty()); }

TEST(PlanBuckets, EveryParameterIsInOneBucketWithoutGapsForRandomModels) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<BucketParameter> parameters(random() % 60);
    for (auto& parameter : parameters) {
      parameter = {random() % 5000, static_cast<int>(random() % 3)};
    }
    const BucketLimits limits{1 + random() % 3000, 1 + random() % 9000};
    const auto buckets = plan_buckets(parameters, limits);
    std::vector<int> seen(parameters.size(), 0);
    for (const BucketLayout& bucket : buckets) {
      std::size_t offset = 0;
      for (const BucketSlot& slot : bucket.slots) {
        EXPECT_EQ(slot.offset_bytes, offset);
        EXPECT_EQ(parameters[slot.parameter].type, bucket.type);
        offset += parameters[slot.parameter].bytes;
        ++seen[slot.parameter];
      }
      EXPECT_EQ(bucket.bytes, offset);
      // Without its last parameter the bucket was below the limit.
      EXPECT_LT(bucket.slots.back().offset_bytes, std::max(limits.first_bytes, limits.other_bytes));
    }
    EXPECT_EQ(seen, std::vector<int>(parameters.size(), 1));
  }
}

TEST(CutIntoPieces, APieceClosesAtItsLimitAndTheLastOnesAreSmaller) {
  const std::vector<BucketParameter> parameters(16, {100, 0});
  const auto buckets = plan_buckets(parameters, {400, 1200});  // 4 and 12 slots.
  const auto pieces = cut_into_pieces(buckets, {false, false}, {250, 100});
  std::vector<std::vector<std::size_t>> found;
  for (const BucketPiece& piece : pieces) {
    found.push_back({piece.bucket, piece.first_slot, piece.slots, piece.offset_bytes, piece.bytes});
  }
  // A quarter of 1,600, 1,300, 1,200, ... bytes that are left, between 100 and 250.
  EXPECT_EQ(found, (Members{{0, 0, 3, 0, 300},
                            {0, 3, 1, 300, 100},
                            {1, 0, 3, 0, 300},
                            {1, 3, 3, 300, 300},
                            {1, 6, 2, 600, 200},
                            {1, 8, 1, 800, 100},
                            {1, 9, 1, 900, 100},
                            {1, 10, 1, 1000, 100},
                            {1, 11, 1, 1100, 100}}));
  EXPECT_EQ(members({layout_of(pieces[4], buckets)}), (Members{{5, 4}}));
}

TEST(CutIntoPieces, WhatIsWholeAndWhatIsOneParameterStayWhole) {
  const auto buckets = plan_buckets({{100 * kMiB, 0}, {5 * kMiB, 0}, {kMiB, 0}}, {kMiB, 6 * kMiB});
  ASSERT_EQ(buckets.size(), 2U);
  const auto pieces = cut_into_pieces(buckets, {true, true}, {1, 1});
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[1].bytes, buckets[1].bytes);
  EXPECT_EQ(cut_into_pieces(buckets, {false, false}, {}).size(), 2U + 1U);
}

TEST(CutIntoPieces, EverySlotIsInOnePieceForRandomModels) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<BucketParameter> parameters(1 + random() % 60);
    for (auto& parameter : parameters) {
      parameter = {random() % 5000, static_cast<int>(random() % 3)};
    }
    const auto buckets = plan_buckets(parameters, {1 + random() % 3000, 1 + random() % 30000});
    std::vector<bool> is_whole(buckets.size());
    for (std::size_t i = 0; i < buckets.size(); ++i) is_whole[i] = random() % 4 == 0;
    const auto pieces = cut_into_pieces(buckets, is_whole, {1 + random() % 9000, random() % 900});
    std::vector<std::size_t> bytes(buckets.size(), 0);
    Members slots(buckets.size());
    std::size_t last = 0;
    for (const BucketPiece& piece : pieces) {
      EXPECT_GE(piece.bucket, last);
      last = piece.bucket;
      EXPECT_EQ(piece.offset_bytes, bytes[piece.bucket]);
      bytes[piece.bucket] += piece.bytes;
      for (const BucketSlot& slot : layout_of(piece, buckets).slots) {
        slots[piece.bucket].push_back(slot.parameter);
      }
      EXPECT_TRUE(!is_whole[piece.bucket] || piece.slots == buckets[piece.bucket].slots.size());
    }
    EXPECT_EQ(slots, members(buckets));
    for (std::size_t i = 0; i < buckets.size(); ++i) EXPECT_EQ(bytes[i], buckets[i].bytes);
  }
}

TEST(BucketProgress, ABucketThatIsReadyWaitsForItsPredecessor) {
  const auto buckets = plan_buckets({{4, 0}, {4, 0}, {4, 0}}, {1, 8});  // {2}, {1, 0}
  BucketProgress progress(buckets, 3);
  EXPECT_TRUE(progress.mark_ready(0));
  EXPECT_TRUE(progress.mark_ready(1));
  EXPECT_EQ(progress.next_launch(), std::nullopt);
  EXPECT_TRUE(progress.mark_ready(2));
  EXPECT_EQ(progress.next_launch(), 0U);
  EXPECT_FALSE(progress.all_launched());
  EXPECT_EQ(progress.next_launch(), 1U);
  EXPECT_EQ(progress.next_launch(), std::nullopt);
  EXPECT_TRUE(progress.all_launched());
}

TEST(BucketProgress, ASecondArrivalIsRefusedAndCountsForNothing) {
  BucketProgress progress(plan_buckets({{4, 0}, {4, 0}}, {}), 2);
  EXPECT_TRUE(progress.mark_ready(1));
  EXPECT_FALSE(progress.mark_ready(1));
  EXPECT_EQ(progress.next_launch(), std::nullopt);
}

TEST(BucketProgress, BeginForgetsAnUnfinishedBackward) {
  BucketProgress progress(plan_buckets({{4, 0}, {4, 0}}, {1, 1}), 2);
  progress.mark_ready(1);
  EXPECT_EQ(progress.next_launch(), 0U);
  progress.begin();
  EXPECT_EQ(progress.next_launch(), std::nullopt);
  progress.mark_ready(0);
  progress.mark_ready(1);
  EXPECT_EQ(progress.next_launch(), 0U);
  EXPECT_EQ(progress.next_launch(), 1U);
}

TEST(BucketProgress, LaunchOrderIsTheSameForEveryOrderOfArrival) {
  std::vector<BucketParameter> parameters(40, {100, 0});
  const auto buckets = plan_buckets(parameters, {150, 450});
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<std::size_t> order(parameters.size());
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    BucketProgress progress(buckets, parameters.size());
    std::vector<std::size_t> launched;
    for (std::size_t parameter : order) {
      EXPECT_TRUE(progress.mark_ready(parameter));
      while (auto bucket = progress.next_launch()) launched.push_back(*bucket);
    }
    std::vector<std::size_t> expected(buckets.size());
    std::iota(expected.begin(), expected.end(), 0U);
    EXPECT_EQ(launched, expected);
  }
}

TEST(BucketProgressDeathTest, AParameterInNoBucketIsABrokenInvariant) {
  EXPECT_DEATH(BucketProgress(plan_buckets({{4, 0}}, {}), 2), "in no bucket");
}

}  // namespace
}  // namespace ddp::buckets
