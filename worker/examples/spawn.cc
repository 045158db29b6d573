// Workers without a launcher, for trying things out:
//
//   ./spawn
#include <cstdio>

#include <ddp/ddp.h>
#include <torch/optim/sgd.h>

#include "net.h"

int main() {
  ddp::spawn(
      [](ddp::Rank rank) {
        at::manual_seed(1);
        at::set_num_threads(1);
        auto group = ddp::ProcessGroup::from_environment();
        auto net = std::make_shared<Net>();
        ddp::DistributedDataParallel model(net, group);
        torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02));
        for (int step = 0; step < 100; ++step) {
          const at::Tensor input = inputs_of(rank, step);
          model.zero_grad();
          loss_of(model(input), input).backward();
          optimizer.step();
        }
        std::printf("rank %d of %d: weights %s\n", rank, group->size(),
                    ddp::weights_sha256(*net).c_str());
      },
      2);
}
