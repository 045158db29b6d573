#include "worker/collectives/kernel_loops.h"

namespace ddp {

constinit const KernelTable kBaselineKernels = make_table("baseline");

}  // namespace ddp
