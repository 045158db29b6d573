#pragma once

#include "worker/collectives/choice.h"

namespace ddp::runtime {

class Group;

// Measures the costs of operations in this group, for Choice. Runs some dozens of small operations,
// in under a millisecond if every rank has a CPU. Collective; each rank gets its own figures.
// Groups of several nodes keep the built-in figures, because they choose nothing by cost inside a
// node.
collectives::CostTable measure_costs(Group& group);

// Makes every rank choose by rank 0's measure_costs() and DDP_ALGO. With DDP_PRINT_ALGO=1, rank 0
// prints the choice to standard error. Collective. Throws std::invalid_argument on rank 0 (and
// aborts the group) if DDP_ALGO is wrong.
void calibrate(Group& group);

}  // namespace ddp::runtime
