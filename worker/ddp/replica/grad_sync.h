#pragma once

namespace ddp {

// When gradients are averaged, and whether the optimizer's state is divided among the ranks.
enum class GradSync {
  kDdp,    // During backward (DistributedDataParallel).
  kStep,   // At the optimizer's step (DistributedOptimizer).
  kZero1,  // During backward; each rank keeps and updates a part (ZeroRedundancyOptimizer).
};

}  // namespace ddp
