#pragma once

#include <array>
#include <bit>
#include <cstddef>

// The order in which the values of a world's ranks are combined: a binary tree that depends on the
// number of ranks alone.
//
// T(lo, hi) is the value of rank lo if hi = lo + 1, else T(lo, lo + P) op T(lo + P, hi), where P is
// the largest power of two below hi - lo. A world of W ranks is T(0, W):
//   W = 3: (a0 + a1) + a2           W = 7: ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + a6)
// A node that holds all ranks of a subtree can combine them first without changing the result's
// bits.
namespace ddp {

// Ranks begin, begin + 1, ..., end - 1.
struct RankRange {
  int begin = 0;
  int end = 0;
  constexpr int size() const { return end - begin; }
  bool operator==(const RankRange&) const = default;
};

// For a tree over at least two ranks: where its second half begins.
constexpr int tree_middle(int begin, int end) {
  return begin + static_cast<int>(std::bit_floor(static_cast<unsigned>(end - begin - 1)));
}

// A short list of ranges, without an allocation.
class RankRanges {
 public:
  constexpr void push_back(RankRange range) { ranges_[size_++] = range; }
  constexpr std::size_t size() const { return size_; }
  constexpr const RankRange& operator[](std::size_t i) const { return ranges_[i]; }
  constexpr const RankRange* data() const { return ranges_.data(); }
  constexpr const RankRange* begin() const { return ranges_.data(); }
  constexpr const RankRange* end() const { return ranges_.data() + size_; }

 private:
  // A range in a tree of height h consists of at most two subtrees of each lower height.
  std::array<RankRange, 64> ranges_{};
  std::size_t size_ = 0;
};

namespace detail {
constexpr void add_subtrees(RankRanges& out, RankRange wanted, RankRange tree) {
  if (tree.end <= wanted.begin || wanted.end <= tree.begin) return;
  if (wanted.begin <= tree.begin && tree.end <= wanted.end) {
    out.push_back(tree);
    return;
  }
  const int middle = tree_middle(tree.begin, tree.end);
  add_subtrees(out, wanted, {tree.begin, middle});
  add_subtrees(out, wanted, {middle, tree.end});
}
}  // namespace detail

// The smallest set of subtrees of T(0, world) that covers exactly the ranks [begin, end), in rank
// order: ranks 4..7 of 8 are one, ranks 0..2 of 6 are {0,2} and {2,3}, ranks 4..6 of 7 are one.
constexpr RankRanges subtrees_of(int begin, int end, int world) {
  RankRanges ranges;
  detail::add_subtrees(ranges, {begin, end}, {0, world});
  return ranges;
}

}  // namespace ddp
