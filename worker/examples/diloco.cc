// Workers that train apart and come together every 20 steps:
//
//   ddp-run --standalone --nproc-per-node 2 ./diloco
#include <cstdio>

#include <ddp/ddp.h>
#include <torch/optim/adamw.h>

#include "net.h"

int main() {
  at::manual_seed(1);
  at::set_num_threads(1);
  auto group = ddp::ProcessGroup::from_environment();
  auto net = std::make_shared<Net>();
  torch::optim::AdamW inner(net->parameters(), torch::optim::AdamWOptions(0.01));
  ddp::DiLoCo diloco(*net, inner, {.sync_every = 20});
  diloco.enter(group);

  for (int step = 0; step < 200; ++step) {
    const at::Tensor input = inputs_of(group->rank(), step);
    diloco.zero_grad();
    loss_of(net->forward(input), input).backward();
    diloco.step();
  }
  diloco.synchronize();
  std::printf("rank %d: gave %llu bytes, weights %s\n", group->rank(),
              static_cast<unsigned long long>(diloco.communicated_bytes()),
              ddp::weights_sha256(*net).c_str());
}
