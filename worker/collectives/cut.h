#pragma once

#include <algorithm>
#include <cstddef>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp::collectives {

// The type in which partial sums travel: the accumulator type, or the elements' type if every node
// has one rank, whose partial sum is its input.
DType partial_type_of(const OpRecord& record, const transport::Topology& topology);

// Decides which rank adds up which elements in an AllReduce. Depends on the record and the topology
// alone, so all ranks cut alike. All sizes are in elements.
//
// The buffer is a matrix: one row for all_reduce and reduce, one row per rank's block for
// reduce_scatter. A chunk is a range of columns. Its elements are numbered row by row, and lie in
// that order in a slot. A chunk consists of areas, each area of one slice for each lane, and each
// slice of parts for the nodes:
//   all_reduce      one area; each slice is cut into equal parts, one for each node; in a swap
//                   the slice is the part of both nodes
//   reduce          the same, but the root's node has a share of its own (see below)
//   reduce_scatter  an area for each node, its ranks' rows; the slice is the part. On nodes with a
//                   lane for every rank a rank's part is its own row.
//
// In a reduce the root's node must receive at least the whole buffer once. Let a be the bytes of a
// node's partial sums per byte of the buffer: 1 if its ranks are a subtree, 2 if in addition the
// elements are a half type, and so on. If the root's node adds up a share x of the buffer and the
// other M - 1 nodes add up equal parts of the rest, the links carry, in units of the buffer's size,
//   into the root's node  a (M-1) x + (1 - x)    out of it  a (1 - x)
//   into another node     a (1 - x)              out of it  a (1 - w) + w, w = (1 - x) / (M - 1)
// All four are equal for x = (a - 1) / (a M - 1), which minimises the load of the busiest link. For
// a = 1 the share is 0, and every link carries the buffer once each way, for any number of nodes.
// If a differs between nodes, x is the smallest share for which neither the traffic into any other
// node nor the traffic out of the root's node exceeds the traffic into the root's node. If the
// others' partial sums together are no larger than the buffer (two nodes with a = 1), x is 1: the
// busiest link carries the same, in one step instead of two, and nothing else moves.
class Cut {
 public:
  // swap: every node has the whole slice; see AllReduce.
  Cut(const OpRecord& record, const transport::Topology& topology, bool swap = false);

  std::size_t chunks() const { return chunks_; }
  std::size_t elements(std::size_t chunk) const { return rows_ * width(chunk); }

  int areas() const { return scattered() ? topology_.nodes() : 1; }
  Slice area(std::size_t chunk, int area) const;
  Slice slice(std::size_t chunk, int area, int lane) const;
  Slice part(std::size_t chunk, int lane, int node) const;
  // The part of the result that a rank gets; in a reduce only the root gets one.
  Slice result(std::size_t chunk, Rank rank) const;
  // An upper bound of the size of the node's parts, over all chunks and lanes.
  std::size_t most_in_part(int node) const;

  // Elements that are contiguous everywhere: in a slot from `at`, in the input buffer from `in`,
  // and in the output buffer of each rank that gets them from `out`.
  struct Run {
    std::size_t row, at, in, out, size;
  };
  // Calls run(Run) for all runs of `where`, in order; at least once if there is one row.
  template <typename F>
  void for_each_run(std::size_t chunk, Slice where, F&& run) const;
  // The `out` of a range that is one run.
  std::size_t out_of(std::size_t chunk, Slice where) const {
    return chunk * width_ + where.begin -
           (rows_ == 1 ? 0 : where.begin / width(chunk) * width(chunk));
  }

 private:
  bool scattered() const { return kind_ == OpKind::kReduceScatter; }
  std::size_t width(std::size_t chunk) const { return std::min(width_, columns_ - chunk * width_); }
  std::size_t share(std::size_t elements) const;
  void plan_share(const OpRecord& record);

  const transport::Topology& topology_;
  OpKind kind_;
  bool swap_;
  std::size_t grain_;  // Bounds of slices and parts are multiples of it.
  std::size_t rows_ = 1;
  std::size_t columns_;
  std::size_t width_;  // Columns of every chunk but the last.
  std::size_t chunks_;
  int root_node_ = -1;  // Of reduce only.
  // The share x of the root's node.
  std::size_t share_numerator_ = 0;
  std::size_t share_denominator_ = 1;
};

template <typename F>
void Cut::for_each_run(std::size_t chunk, Slice where, F&& run) const {
  const std::size_t first = chunk * width_;
  if (rows_ == 1) {
    run(Run{0, where.begin, first + where.begin, first + where.begin, where.size()});
    return;
  }
  const std::size_t columns = width(chunk);
  for (std::size_t at = where.begin; at < where.end;) {
    const std::size_t row = at / columns;
    const std::size_t column = at % columns;
    const std::size_t size = std::min(columns - column, where.end - at);
    run(Run{row, at, row * columns_ + first + column, first + column, size});
    at += size;
  }
}

}  // namespace ddp::collectives
