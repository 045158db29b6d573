#pragma once

#include <cstddef>
#include <span>

#include "worker/collectives/tree_order.h"
#include "worker/collectives/types.h"

namespace ddp::collectives {

// How the elements of several ranks are combined.
struct Reduction {
  // Types of the sources and of the targets: the same, or one a half type and the other kF32,
  // because partial sums of half types travel and accumulate as kF32 and are rounded once.
  DType in = DType::kF32;
  DType out = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  // 0: more ranks follow. Otherwise this is the last step, and an average is multiplied by
  // 1/divisor, in the accumulator type, before it is rounded.
  int divisor = 0;
  // kPremulSum: the factor of each source; empty if the sources are scaled already.
  std::span<const double> factors{};
};

// Combines the sources along the tree of tree_order.h and stores the result in every target. Source
// i stands for the ranks ranges[i]. The ranges are contiguous and in rank order; each is a subtree,
// and together they are a subtree. The bits of the result depend on the inputs and the tree alone,
// not on the processor, the addresses, or how ranks were grouped into sources. Every NaN in a
// result is the quiet NaN without sign and payload.
//
// A target may be identical to a source if their types are the same; otherwise nothing may overlap.
// Addresses need no alignment. Neither allocates nor blocks; uses up to 70 KiB of stack. The
// thread's floating-point mode must be the default (FloatEnvironment).
void reduce(const Reduction& reduction, std::span<const RankRange> ranges,
            std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
            std::size_t count);

// Floating point as IEEE 754 has it (round to nearest, denormals kept) on this thread while the
// object lives, so that sums do not depend on the thread's settings.
class FloatEnvironment {
 public:
  FloatEnvironment();
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  unsigned saved_ = 0;
};

}  // namespace ddp::collectives
