// Trains a small network on all workers that ddp-run starts:
//
//   ddp-run --standalone --nproc-per-node 2 ./train
//
// Without the three lines marked with their number it is a program for one process.
#include <cstdio>

#include <ddp/ddp.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

struct Net : torch::nn::Module {
  Net()
      : hidden(register_module("hidden", torch::nn::Linear(8, 32))),
        output(register_module("output", torch::nn::Linear(32, 1))) {}

  at::Tensor forward(const at::Tensor& x) { return output(torch::relu(hidden(x))); }

  torch::nn::Linear hidden;
  torch::nn::Linear output;
};

int main() {
  at::manual_seed(1);
  at::set_num_threads(1);
  at::Tensor inputs = at::randn({256, 8});
  at::Tensor targets = inputs.sin().sum(1, /*keepdim=*/true);

  auto group = ddp::ProcessGroup::from_environment();  // 1
  auto net = std::make_shared<Net>();
  ddp::DistributedDataParallel model(net, group);  // 2
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));

  // Every worker trains on its own part of the data, on the same steps.
  inputs = inputs.chunk(group->size())[group->rank()];  // 3
  targets = targets.chunk(group->size())[group->rank()];
  for (int step = 0; step <= 200; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::mse_loss(model(inputs), targets);
    loss.backward();
    optimizer.step();
    if (step % 100 == 0) {
      const double mean =
          ddp::mesh_reduce("loss", loss.item<double>(), ddp::mean_of<double>, *group);
      if (group->rank() == 0) std::printf("step %d: loss %.4f\n", step, mean);
    }
  }
  // Equal on all workers.
  std::printf("rank %d of %d: weights %s\n", group->rank(), group->size(),
              ddp::weights_sha256(*net).c_str());
}
