#include "worker/collectives/kernel_loops.h"

namespace ddp::collectives {

constinit const KernelTable kAvx2Kernels = make_table("avx2");

}  // namespace ddp::collectives
