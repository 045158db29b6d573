#include "worker/collectives/tree_order.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace ddp {
namespace {

// Every subtree of the tree over [begin, end), by the definition: the first half is the largest
// power of two that leaves something over.
void collect(std::vector<RankRange>& out, int begin, int end) {
  out.push_back({begin, end});
  if (end - begin == 1) return;
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  collect(out, begin, begin + half);
  collect(out, begin + half, end);
}

bool contains(const std::vector<RankRange>& ranges, RankRange wanted) {
  for (const RankRange& range : ranges) {
    if (range == wanted) return true;
  }
  return false;
}

// Whether two neighbours, or more, of the ranges are a subtree together.
bool mergeable(const std::vector<RankRange>& subtrees, const RankRanges& ranges) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::size_t j = i + 1; j < ranges.size(); ++j) {
      if (contains(subtrees, {ranges[i].begin, ranges[j].end})) return true;
    }
  }
  return false;
}

TEST(TreeOrder, RangesOfEveryWorldAreCutIntoTheirLargestSubtrees) {
  for (int world = 1; world <= 40; ++world) {
    std::vector<RankRange> subtrees;
    collect(subtrees, 0, world);
    for (int begin = 0; begin < world; ++begin) {
      for (int end = begin + 1; end <= world; ++end) {
        const std::string what =
            std::to_string(begin) + ".." + std::to_string(end) + " of " + std::to_string(world);
        const RankRanges ranges = subtrees_of(begin, end, world);
        int covered = begin;
        for (const RankRange& range : ranges) {
          EXPECT_EQ(range.begin, covered) << what;
          EXPECT_TRUE(contains(subtrees, range)) << what;
          covered = range.end;
        }
        EXPECT_EQ(covered, end) << what;
        EXPECT_FALSE(mergeable(subtrees, ranges)) << what;
      }
    }
  }
}

std::vector<RankRange> listed(int begin, int end, int world) {
  const RankRanges ranges = subtrees_of(begin, end, world);
  return {ranges.begin(), ranges.end()};
}

TEST(TreeOrder, Examples) {
  EXPECT_EQ(listed(4, 8, 8), (std::vector<RankRange>{{4, 8}}));
  EXPECT_EQ(listed(0, 3, 6), (std::vector<RankRange>{{0, 2}, {2, 3}}));
  EXPECT_EQ(listed(3, 6, 6), (std::vector<RankRange>{{3, 4}, {4, 6}}));
  EXPECT_EQ(listed(4, 7, 7), (std::vector<RankRange>{{4, 7}}));
  EXPECT_EQ(listed(0, 7, 7), (std::vector<RankRange>{{0, 7}}));
  EXPECT_TRUE(listed(3, 3, 7).empty());
  // The most ranges there can be fit.
  EXPECT_EQ(listed(1, (1 << 30) - 1, 1 << 30).size(), 58U);
}

TEST(TreeOrder, HalvesBeginAtTheLargestPowerOfTwo) {
  EXPECT_EQ(tree_middle(0, 2), 1);
  EXPECT_EQ(tree_middle(0, 3), 2);
  EXPECT_EQ(tree_middle(0, 4), 2);
  EXPECT_EQ(tree_middle(0, 7), 4);
  EXPECT_EQ(tree_middle(8, 13), 12);
}

}  // namespace
}  // namespace ddp
