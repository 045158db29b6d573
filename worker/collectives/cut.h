#pragma once

#include <algorithm>
#include <cstddef>

#include "worker/collectives/operation.h"
#include "worker/collectives/stream.h"

namespace ddp {

// In what type partial sums travel: that in which they are added up, but if every node is a lone
// rank, whose partial sum is its input, that of the elements.
DType partial_type_of(const OpRecord& record, const Topology& topology);

// Which rank adds up which elements in an AllReduce, by the record and the topology alone, so that
// all ranks cut alike. All sizes are in elements.
//
// The buffer is a matrix: one row for all_reduce and reduce, one row for each rank's block for
// reduce_scatter. A chunk is some columns of it. Its elements are numbered row by row, and lie in
// that order in a slot. Lanes cut an area of the chunk into slices; nodes have parts:
//   all_reduce      one area; each slice is cut into equal parts, one for each node; in an exchange
//                   the slice is the part of both nodes
//   reduce          the same, but the root's node has a share of its own (see below)
//   reduce_scatter  an area for each node, its ranks' rows; the slice is the part. On nodes with a
//                   lane for every rank a rank's part is its own row.
//
// Of a reduce the root's node has to receive the buffer once, whatever is done. A node's partial
// sums take a bytes for a byte of the buffer: 1 if its ranks are a subtree, 2 if they are one of a
// half type, and so on. If the root's node adds up a share x of the buffer and the other M - 1
// nodes the rest in equal parts, then through the links go, in buffers,
//   into the root's node  a (M-1) x + (1 - x)    out of it  a (1 - x)
//   into another node     a (1 - x)              out of it  a (1 - w) + w, w = (1 - x) / (M - 1)
// All four are the same for x = (a - 1) / (a M - 1), which makes the busiest link's least: no share
// at all for a = 1, when every link carries the buffer once each way, for any number of nodes.
// Where a differs between nodes, x is the least with which no other link takes in, and the root's
// node gives out, more than the root's node takes in. If the others' partial sums together are no
// more than the buffer, which is between two nodes with a = 1, x is 1: the same for the busiest
// link, one step instead of two, and nothing else moves.
class Cut {
 public:
  // exchange: every node has the whole slice; see AllReduce.
  Cut(const OpRecord& record, const Topology& topology, bool exchange = false);

  std::size_t chunks() const { return chunks_; }
  std::size_t elements(std::size_t chunk) const { return rows_ * width(chunk); }

  int areas() const { return scattered() ? topology_.nodes() : 1; }
  Slice area(std::size_t chunk, int area) const;
  Slice slice(std::size_t chunk, int area, int lane) const;
  Slice part(std::size_t chunk, int lane, int node) const;
  // What a rank gets of the result, of reduce only the root.
  Slice result(std::size_t chunk, Rank rank) const;
  // At least the size of any part of the node, in any chunk and lane.
  std::size_t most_in_part(int node) const;

  // Elements that follow one another everywhere: in a slot from `at`, in the input buffer from
  // `in`, in the output buffer of whoever gets them from `out`.
  struct Run {
    std::size_t row, at, in, out, size;
  };
  // run(Run) for all that `where` consists of, in order; at least once if there is one row.
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

  const Topology& topology_;
  OpKind kind_;
  bool exchange_;
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

}  // namespace ddp
