// Two replicas on two threads of one process; with CUDA devices, on those:
//
//   ./data_parallel
#include <cstdio>

#include <ddp/ddp.h>
#include <torch/optim/sgd.h>

#include "net.h"

int main() {
  at::manual_seed(1);
  at::set_num_threads(1);
  auto net = std::make_shared<Net>();
  ddp::DataParallel<Net> model(net, [] { return std::make_shared<Net>(); },
                               {.devices = {c10::kCPU, c10::kCPU}});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));

  double loss = 0;
  for (int step = 0; step < 200; ++step) {
    const at::Tensor input = inputs_of(0, step, 64);
    optimizer.zero_grad();
    const at::Tensor mean = loss_of(model(input), input);
    mean.backward();
    optimizer.step();
    loss = mean.item<double>();
  }
  std::printf("loss %.4f, weights %s\n", loss, ddp::weights_sha256(*net).c_str());
}
