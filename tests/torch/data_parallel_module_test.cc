// DataParallel: replicas of a module in one process, against the module alone.
#include <memory>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "worker/ddp/modules/data_parallel.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

DataParallelOptions on_cpus(std::size_t count) {
  DataParallelOptions options;
  options.devices.assign(count, c10::Device(c10::kCPU));
  return options;
}

TEST(DataParallelModule, GivesTheModulesOutputAndGradients) {
  for (const std::size_t devices : {1U, 2U, 3U}) {
    const auto alone = make_mlp(3);
    const auto module = make_mlp(3);
    DataParallel<Mlp> model(
        module, [] { return make_mlp(8); }, on_cpus(devices));
    torch::optim::SGD expected(alone->parameters(), 0.1);
    torch::optim::SGD optimizer(module->parameters(), 0.1);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const at::Tensor input = random_tensor({7, 6}, step);
      expected.zero_grad();
      optimizer.zero_grad();
      const at::Tensor output = model(input);
      ASSERT_TRUE(torch::allclose(output, alone->forward(input), 1e-5, 1e-6));
      output.pow(2).sum().backward();
      alone->forward(input).pow(2).sum().backward();
      for (std::size_t index = 0; index < alone->parameters().size(); ++index) {
        ASSERT_TRUE(torch::allclose(module->parameters()[index].grad(),
                                    alone->parameters()[index].grad(), 1e-4, 1e-5))
            << "step " << step << ", " << devices << " devices";
      }
      expected.step();
      optimizer.step();
    }
  }
}

TEST(DataParallelModule, LessInputThanDevices) {
  const auto module = make_mlp(3);
  DataParallel<Mlp> model(
      module, [] { return make_mlp(3); }, on_cpus(4));
  const at::Tensor input = random_tensor({2, 6}, 1);
  EXPECT_TRUE(torch::allclose(model(input), module->forward(input)));
}

TEST(DataParallelModule, FrozenParametersAndEvaluation) {
  const auto module = make_mlp(3);
  DataParallel<Mlp> model(
      module, [] { return make_mlp(3); }, on_cpus(2));
  module->parameters()[0].requires_grad_(false);
  const at::Tensor input = random_tensor({6, 6}, 1);
  model(input).sum().backward();
  EXPECT_FALSE(module->parameters()[0].grad().defined());
  EXPECT_TRUE(module->parameters()[1].grad().defined());
  const at::NoGradGuard no_grad;
  module->eval();
  EXPECT_FALSE(model(input).requires_grad());
}

// As in PyTorch: the statistics are those of the first replica's part.
TEST(DataParallelModule, BuffersAreTheFirstReplicas) {
  const auto make = [] {
    auto net = std::make_shared<ConvNet>(true);
    fill(*net, 5);
    return net;
  };
  const auto alone = make();
  const auto module = make();
  DataParallel<ConvNet> model(module, make, on_cpus(2));
  const at::Tensor images = random_tensor({8, 1, 28, 28}, 1);
  model(images);
  alone->forward(images.chunk(2)[0]);
  for (std::size_t index = 0; index < alone->buffers().size(); ++index)
    EXPECT_TRUE(torch::allclose(module->buffers()[index], alone->buffers()[index]));
}

struct Picky : torch::nn::Cloneable<Picky> {
  Picky() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({2})); }
  at::Tensor forward(const at::Tensor& x) {
    if (x.min().item<float>() < 0) throw std::runtime_error("a negative input");
    return x * weight;
  }
  at::Tensor weight;
};

TEST(DataParallelModule, AnExceptionOfAReplicaIsThrownAndTheModelStaysUsable) {
  DataParallel<Picky> model(std::make_shared<Picky>(), on_cpus(2));
  EXPECT_THAT(error_of([&] {
                model(torch::tensor({{1.0F, 1.0F}, {-1.0F, 1.0F}}));
              }),
              HasSubstr("a negative input"));
  EXPECT_TRUE(torch::equal(model(torch::ones({2, 2})), torch::ones({2, 2})));
}

TEST(DataParallelModule, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(error_of([] {
                DataParallel<Mlp> model(make_mlp(3), [] { return make_mlp(3, {6, 9, 4}); });
              }),
              HasSubstr("replica 1 lacks the module's parameter"));
  EXPECT_THAT(error_of([] {
                DataParallel<Mlp> model(
                    make_mlp(3), [] { return make_mlp(3); }, on_cpus(0));
              }),
              HasSubstr("no devices"));
}

}  // namespace
}  // namespace ddp::test
