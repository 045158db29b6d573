#include "worker/collectives/kernel_loops.h"

namespace ddp::collectives {

constinit const KernelTable kAvx512Kernels = make_table("avx512");

}  // namespace ddp::collectives
