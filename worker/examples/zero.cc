// Keeps a part of Adam's state on each worker:
//
//   ddp-run --standalone --nproc-per-node 2 ./zero
#include <cstdio>

#include <ddp/ddp.h>
#include <torch/optim/adam.h>

#include "net.h"

int main() {
  at::manual_seed(1);
  at::set_num_threads(1);
  auto group = ddp::ProcessGroup::from_environment();
  auto net = std::make_shared<Net>();
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  ddp::DistributedDataParallel model(net, group);
  ddp::ZeroRedundancyOptimizer optimizer(adam, model);

  for (int step = 0; step < 200; ++step) {
    const at::Tensor input = inputs_of(group->rank(), step);
    optimizer.zero_grad();
    loss_of(model(input), input).backward();
    optimizer.step();
  }
  std::printf("rank %d: updates %zu elements, weights %s\n", group->rank(), optimizer.elements(),
              ddp::weights_sha256(*net).c_str());
}
