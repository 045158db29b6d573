#pragma once

#include "worker/collectives/choice.h"

namespace ddp {

class Group;

// Measures what operations cost in this group, for Choice: some dozens of small operations, under a
// millisecond where every rank has a CPU. Collective; every rank measures and gets other figures.
// Groups of several nodes keep the built-in ones: inside a node they choose nothing by cost.
CostTable measure_costs(Group& group);

// measure_costs() on rank 0's account, with DDP_ALGO of rank 0; every rank then chooses alike. With
// DDP_PRINT_ALGO=1 rank 0 says what was chosen on standard error. Collective. Throws
// std::invalid_argument on rank 0 (and aborts the group) if DDP_ALGO is wrong.
void calibrate(Group& group);

}  // namespace ddp
