// Continues training in the same processes while workers are lost and join:
//
//   ddp-run --nnodes 1:4 --nproc-per-node 2 --max-restarts 100 ./elastic
//
// Kill one of them.
#include <cstdio>

#include <ddp/ddp.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

int main() {
  at::set_num_threads(1);
  at::manual_seed(1);
  const at::Tensor inputs = at::randn({100'000, 8});
  const at::Tensor targets = inputs.sin().sum(1, /*keepdim=*/true);

  // What outlives the loss of workers.
  auto net = std::make_shared<torch::nn::LinearImpl>(8, 1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  std::int64_t position = 0;  // Samples that all workers together have used.
  ddp::ElasticState state;
  state.add_module("net", *net);
  state.add_optimizer("optimizer", optimizer, *net);
  state.add_rng();
  state.add_value("position", position);

  ddp::run_elastic(state, [&](const std::shared_ptr<ddp::ProcessGroup>& group) {
    // What belongs to these workers.
    ddp::DistributedDataParallel model(net, group);
    constexpr std::int64_t kBatch = 16;
    const std::int64_t joint = kBatch * group->size();
    while (position + joint <= inputs.size(0)) {
      optimizer.zero_grad();
      const std::int64_t mine = position + kBatch * group->rank();
      const at::Tensor loss = torch::nn::functional::mse_loss(model(inputs.narrow(0, mine, kBatch)),
                                                              targets.narrow(0, mine, kBatch));
      loss.backward();
      optimizer.step();
      position += joint;
      state.commit_if_due(position);
    }
    std::printf("rank %d of %d: weights %s\n", group->rank(), group->size(),
                ddp::weights_sha256(*net).c_str());
  });
}
