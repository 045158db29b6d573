#pragma once

namespace ddp {

// When gradients are averaged, and whose the optimizer's state is.
enum class GradSync {
  kDdp,    // During backward (DistributedDataParallel).
  kStep,   // At the optimizer's step (DistributedOptimizer).
  kZero1,  // During backward; each rank keeps and updates a part (ZeroRedundancyOptimizer).
};

}  // namespace ddp
