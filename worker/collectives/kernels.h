#pragma once

#include <cstddef>
#include <span>

#include "worker/collectives/types.h"

namespace ddp {

// How the elements of several ranks become one.
struct Reduction {
  DType type = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  // 0: more ranks follow. Otherwise this is the last step, and an average is multiplied by
  // 1/divisor.
  int divisor = 0;
};

// target[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., in this order for every
// element, whatever the machine's vector width. `also`, if not null, gets the same values.
//
// target may be sources[0], and `also` may be any source; otherwise nothing overlaps. Integers
// wrap.
void reduce(const Reduction& reduction, std::byte* target, std::byte* also,
            std::span<const std::byte* const> sources, std::size_t count);

// Floating point as IEEE 754 has it (round to nearest, denormals kept) on this thread while the
// object lives, so that sums do not depend on what the thread was set to.
class FloatEnvironment {
 public:
  FloatEnvironment();
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  unsigned saved_ = 0;
};

}  // namespace ddp
