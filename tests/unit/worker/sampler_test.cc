#include "worker/data/sampler.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "worker/data/random.h"

namespace ddp {
namespace {

using Indices = std::vector<std::int64_t>;

DistributedSampler make(std::int64_t size, std::int64_t batch, Rank rank, int world,
                        bool drop_last = true, std::uint64_t seed = 1) {
  return DistributedSampler({.dataset_size = size,
                             .batch_size = batch,
                             .rank = rank,
                             .world_size = world,
                             .seed = seed,
                             .drop_last = drop_last});
}

Indices take(DistributedSampler& sampler) {
  const auto batch = sampler.next_batch();
  return {batch.begin(), batch.end()};
}

// What all ranks together take in their next step, in the order of the permutation.
Indices take_jointly(std::vector<DistributedSampler>& ranks) {
  std::vector<Indices> batches;
  for (DistributedSampler& rank : ranks) batches.push_back(take(rank));
  Indices joint;
  for (std::size_t i = 0; i < batches[0].size(); ++i) {
    for (const Indices& batch : batches) joint.push_back(batch.at(i));
  }
  return joint;
}

std::vector<DistributedSampler> make_ranks(std::int64_t size, std::int64_t batch, int world,
                                           bool drop_last = true) {
  std::vector<DistributedSampler> ranks;
  for (Rank rank = 0; rank < world; ++rank)
    ranks.push_back(make(size, batch, rank, world, drop_last));
  return ranks;
}

TEST(Sampler, OneRankKnowsWhatTheOthersTake) {
  std::vector<DistributedSampler> ranks;
  for (Rank rank = 0; rank < 3; ++rank) {
    ranks.push_back(DistributedSampler({.dataset_size = 28,
                                        .batch_size = 4,
                                        .rank = rank,
                                        .world_size = 3,
                                        .seed = 1,
                                        .drop_last = false}));
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<Indices> batches;
    for (DistributedSampler& rank : ranks) batches.push_back(take(rank));
    for (const DistributedSampler& rank : ranks) {
      for (std::size_t other = 0; other < ranks.size(); ++other) {
        EXPECT_EQ(rank.batch_of(static_cast<Rank>(other)), batches[other]) << step;
      }
    }
  }
  EXPECT_EQ(ranks[0].steps_left(), 0);
}

TEST(Sampler, TheRanksTogetherTakeTheBatchesOfOneProcess) {
  for (const int world : {1, 2, 3, 4}) {
    auto one = make(1000, 12, 0, 1);
    auto ranks = make_ranks(1000, 12 / world, world);
    for (const std::int64_t epoch : {0, 1, 5}) {
      one.set_epoch(epoch);
      for (auto& rank : ranks) rank.set_epoch(epoch);
      ASSERT_EQ(one.steps_left(), 83);
      for (std::int64_t step = 0; step < 83; ++step) {
        ASSERT_EQ(ranks[0].steps_left(), 83 - step);
        const Indices whole = take(one);
        ASSERT_EQ(whole.size(), 12U);
        ASSERT_EQ(take_jointly(ranks), whole) << "world " << world << " epoch " << epoch;
      }
      EXPECT_TRUE(take(one).empty());
      for (auto& rank : ranks) EXPECT_TRUE(take(rank).empty());
    }
  }
}

TEST(Sampler, AnEpochIsAPermutation) {
  auto sampler = make(997, 1, 0, 1);
  for (const std::int64_t epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    Indices all;
    for (Indices batch = take(sampler); !batch.empty(); batch = take(sampler)) {
      all.push_back(batch[0]);
    }
    EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
    std::sort(all.begin(), all.end());
    Indices expected(997);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
  }
}

TEST(Sampler, TheOrderDependsOnSeedAndEpochAlone) {
  auto a = make(500, 100, 0, 1);
  auto b = make(500, 100, 0, 1);
  a.set_epoch(3);
  take(a);
  a.set_epoch(7);
  b.set_epoch(7);
  const Indices first = take(a);
  EXPECT_EQ(first, take(b));
  b.set_epoch(8);
  EXPECT_NE(first, take(b));
  auto other_seed = make(500, 100, 0, 1, true, 2);
  other_seed.set_epoch(7);
  EXPECT_NE(first, take(other_seed));
  a.set_epoch(7);  // Again from its start.
  EXPECT_EQ(first, take(a));
}

TEST(Sampler, TheFirstPermutationIsTheSameOnEveryMachine) {
  auto sampler = make(100, 10, 0, 1);
  EXPECT_EQ(take(sampler), (Indices{41, 42, 53, 45, 69, 58, 24, 21, 98, 14}));
}

TEST(Sampler, DropLastLeavesOutAnIncompleteJointBatch) {
  auto ranks = make_ranks(103, 10, 2);
  EXPECT_EQ(ranks[0].steps_per_epoch(), 5);
  Indices all;
  for (int step = 0; step < 5; ++step) {
    for (auto& rank : ranks) {
      const Indices batch = take(rank);
      ASSERT_EQ(batch.size(), 10U);
      all.insert(all.end(), batch.begin(), batch.end());
    }
  }
  EXPECT_TRUE(take(ranks[0]).empty());
  EXPECT_TRUE(take(ranks[1]).empty());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
}

// What remains is dealt in the same way, whatever is left, and begun in another world, too.
TEST(Sampler, AnUnevenLastBatchIsTheRestOfTheOneProcess) {
  for (const std::int64_t size : {1, 2, 3, 4, 30, 31, 34, 59}) {
    for (const int world : {1, 2, 3, 5}) {
      std::vector<Indices> steps;

      for (Rank rank = 0; rank < world; ++rank) {
        DistributedSampler sampler({.dataset_size = size,
                                    .batch_size = 30 / world,
                                    .rank = rank,
                                    .world_size = world,
                                    .drop_last = false});
        for (std::size_t step = 0; sampler.steps_left() > 0; ++step) {
          steps.resize(std::max(steps.size(), step + 1));
          const Indices batch = take(sampler);
          steps[step].insert(steps[step].end(), batch.begin(), batch.end());
        }
        EXPECT_EQ(sampler.position(), size);
      }
      auto one = make(size, 30, 0, 1, false, 0);
      ASSERT_EQ(static_cast<std::int64_t>(steps.size()), one.steps_per_epoch());
      for (Indices& joint : steps) {
        Indices whole = take(one);
        std::sort(joint.begin(), joint.end());
        std::sort(whole.begin(), whole.end());
        EXPECT_EQ(joint, whole) << size << " samples, world " << world;
      }
    }
  }
}

TEST(Sampler, ASavedPositionContinuesExactly) {
  auto undisturbed = make(1000, 16, 1, 2);
  undisturbed.set_epoch(4);
  for (int i = 0; i < 9; ++i) take(undisturbed);
  auto resumed = make(1000, 16, 1, 2);
  resumed.set_epoch(undisturbed.epoch(), undisturbed.position());
  EXPECT_EQ(resumed.steps_left(), undisturbed.steps_left());
  for (Indices batch = take(undisturbed); !batch.empty(); batch = take(undisturbed)) {
    EXPECT_EQ(take(resumed), batch);
  }
  EXPECT_TRUE(take(resumed).empty());
  // The position at the end of the epoch is one to go on from, too.
  resumed.set_epoch(4, undisturbed.position());
  EXPECT_EQ(resumed.steps_left(), 0);
}

TEST(Sampler, AnotherWorldContinuesWithoutLosingOrRepeatingASample) {
  auto two = make_ranks(240, 10, 2);
  Indices all;
  for (int step = 0; step < 3; ++step) {
    const Indices joint = take_jointly(two);
    all.insert(all.end(), joint.begin(), joint.end());
  }
  auto three = make_ranks(240, 10, 3);
  for (auto& rank : three) rank.set_epoch(0, two[0].position());
  EXPECT_EQ(three[0].steps_left(), 6);
  for (Indices joint = take_jointly(three); !joint.empty(); joint = take_jointly(three)) {
    all.insert(all.end(), joint.begin(), joint.end());
  }
  std::sort(all.begin(), all.end());
  Indices expected(240);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

TEST(Random, BelowIsInRangeAndReachesEveryValue) {
  Random random({42});
  std::vector<int> seen(7);
  for (int i = 0; i < 7000; ++i) ++seen.at(random.below(7));
  for (const int count : seen) EXPECT_NEAR(count, 1000, 200);
  EXPECT_EQ(random.below(1), 0U);
}

TEST(Random, BetweenStaysInItsHalfOpenRange) {
  Random random({43});
  double sum = 0;
  for (int i = 0; i < 10000; ++i) {
    const double value = random.between(-2, 6);
    ASSERT_GE(value, -2);
    ASSERT_LT(value, 6);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 2.0, 0.2);
}

TEST(Random, KeysThatDifferAnywhereGiveOtherStreams) {
  EXPECT_EQ(Random({1, 2}).next(), Random({1, 2}).next());
  EXPECT_NE(Random({1, 2}).next(), Random({2, 1}).next());
  EXPECT_NE(Random({1, 2}).next(), Random({1, 3}).next());
  EXPECT_NE(Random({0}).next(), Random({0, 0}).next());
}

TEST(Sampler, WithoutShufflingEveryEpochIsInOrder) {
  DistributedSampler sampler({.dataset_size = 7,
                              .batch_size = 2,
                              .rank = 1,
                              .world_size = 2,
                              .shuffle = false,
                              .drop_last = false});
  for (const std::int64_t epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    EXPECT_EQ(take(sampler), (Indices{1, 3}));
    EXPECT_EQ(take(sampler), (Indices{5}));
    EXPECT_EQ(sampler.steps_left(), 0);
  }
}

}  // namespace
}  // namespace ddp
