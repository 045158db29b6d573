// Sums a number over all workers without LibTorch: ddp-run --standalone --nproc-per-node 2 ./sum
#include <cstdio>

#include <ddp/runtime.h>

int main() {
  auto group = ddp::ProcessGroup::from_environment();
  double sum = group->rank() + 1;
  group->all_reduce({&sum, 1, ddp::DType::kF64}, ddp::ReduceOp::kSum)->wait();
  std::printf("rank %d of %d: sum %g\n", group->rank(), group->size(), sum);
}
