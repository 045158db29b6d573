#include "worker/collectives/kernel_loops.h"

namespace ddp::collectives {

constinit const KernelTable kBaselineKernels = make_table("baseline");

}  // namespace ddp::collectives
