// Batch normalisation over the samples of all ranks, against one process with all samples.
#include "worker/ddp/modules/sync_batch_norm.h"

#include <memory>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/modules/sync_batch_norm_layer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// Rows of a joint batch that a rank has: not the same number for each.
at::Tensor share_of(const at::Tensor& joint, int rank, int world) {
  const std::int64_t rows = joint.size(0);
  const std::int64_t begin = rows * rank * rank / (world * world);
  const std::int64_t end = rows * (rank + 1) * (rank + 1) / (world * world);
  return joint.narrow(0, begin, end - begin);
}

template <typename Layer>
void expect_joint(const std::vector<std::int64_t>& shape, at::ScalarType type, double tolerance) {
  for (const int world : {1, 2, 3}) {
    const at::Tensor joint = random_tensor(shape, 1).to(type) * 3 + 1;
    const at::Tensor weights = random_tensor(shape, 2).to(type);
    Layer one(shape[1]);
    fill(*one, 4);
    one->to(type);
    for (int step = 0; step < 2; ++step) one->forward(joint * (step + 1));
    const at::Tensor expected_input = joint.clone().requires_grad_();
    const at::Tensor expected = one->forward(expected_input);
    (expected * weights).sum().backward();
    std::vector<at::Tensor> weight_gradients(static_cast<std::size_t>(world));
    std::vector<at::Tensor> bias_gradients(static_cast<std::size_t>(world));
    run_ranks({world}, [&](const GroupPtr& group) {
      const int rank = group->rank();
      Layer layer(shape[1]);
      fill(*layer, 4);
      layer->to(type);
      EXPECT_EQ(convert_sync_batchnorm(*layer, group), 1U);
      for (int step = 0; step < 2; ++step)
        layer->forward(share_of(joint, rank, world) * (step + 1));
      const at::Tensor input = share_of(joint, rank, world).clone().requires_grad_();
      const at::Tensor output = layer->forward(input);
      (output * share_of(weights, rank, world)).sum().backward();
      EXPECT_TRUE(torch::allclose(output, share_of(expected, rank, world), tolerance, tolerance));
      EXPECT_TRUE(torch::allclose(input.grad(), share_of(expected_input.grad(), rank, world),
                                  10 * tolerance, 10 * tolerance));
      EXPECT_TRUE(torch::allclose(layer->running_mean, one->running_mean, tolerance, tolerance));
      EXPECT_TRUE(torch::allclose(layer->running_var, one->running_var, tolerance, tolerance));
      EXPECT_EQ(layer->num_batches_tracked.template item<std::int64_t>(), 3);
      weight_gradients[static_cast<std::size_t>(rank)] = layer->weight.grad();
      bias_gradients[static_cast<std::size_t>(rank)] = layer->bias.grad();
      // Evaluation is nobody else's affair.
      layer->eval();
      if (rank == 0) {
        layer->forward(input);
      }
    });
    at::Tensor of_weight = torch::zeros_like(one->weight);
    at::Tensor of_bias = torch::zeros_like(one->bias);
    for (const at::Tensor& part : weight_gradients) of_weight += part;
    for (const at::Tensor& part : bias_gradients) of_bias += part;
    EXPECT_TRUE(torch::allclose(of_weight, one->weight.grad(), 10 * tolerance, 10 * tolerance));
    EXPECT_TRUE(torch::allclose(of_bias, one->bias.grad(), 10 * tolerance, 10 * tolerance));
  }
}

TEST(SyncBatchNorm, IsThatOfTheJointBatch) {
  expect_joint<torch::nn::BatchNorm1d>({23, 4}, at::kDouble, 1e-12);
  expect_joint<torch::nn::BatchNorm1d>({11, 3, 7}, at::kFloat, 1e-5);
  expect_joint<torch::nn::BatchNorm2d>({13, 5, 6, 7}, at::kFloat, 1e-5);
  expect_joint<torch::nn::BatchNorm3d>({9, 2, 3, 4, 5}, at::kDouble, 1e-12);
}

// A model trained by ranks with halves of a batch is the one trained with the whole.
TEST(SyncBatchNorm, TrainsAsOneProcessDoes) {
  const auto train = [](const std::function<at::Tensor(const at::Tensor&)>& forward,
                        const std::vector<at::Tensor>& parameters, int rank, int world) {
    torch::optim::SGD sgd(parameters, 0.05);
    for (std::uint64_t step = 0; step < 3; ++step) {
      sgd.zero_grad();
      const at::Tensor joint = random_tensor({8, 1, 28, 28}, step).to(at::kDouble);
      const at::Tensor images = joint.chunk(world)[static_cast<std::size_t>(rank)];
      forward(images).pow(2).mean().backward();
      sgd.step();
    }
  };
  const auto make = [] {
    auto net = std::make_shared<ConvNet>(true);
    fill(*net, 5);
    net->to(at::kDouble);
    return net;
  };
  const auto alone = make();
  train([&](const at::Tensor& x) { return alone->forward(x); }, alone->parameters(), 0, 1);
  run_ranks({2}, [&](const GroupPtr& group) {
    const auto net = make();
    EXPECT_EQ(convert_sync_batchnorm(*net, group), 2U);
    DistributedDataParallel<ConvNet> model(net, group);
    train([&](const at::Tensor& x) { return model(x); }, net->parameters(), group->rank(), 2);
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(torch::allclose(net->parameters()[i], alone->parameters()[i], 1e-9, 1e-10));
    for (std::size_t i = 0; i < net->buffers().size(); ++i)
      EXPECT_TRUE(torch::allclose(net->buffers()[i], alone->buffers()[i], 1e-9, 1e-10));
  });
}

TEST(SyncBatchNorm, ARankMayHaveNoSamples) {
  run_ranks({2}, [](const GroupPtr& group) {
    torch::nn::BatchNorm1d layer(3);
    convert_sync_batchnorm(*layer, group);
    const at::Tensor joint = random_tensor({6, 3}, 1);
    const at::Tensor input =
        joint.narrow(0, 0, group->rank() == 0 ? 6 : 0).clone().requires_grad_();
    const at::Tensor output = layer->forward(input);
    output.pow(2).sum().backward();
    EXPECT_EQ(output.size(0), group->rank() == 0 ? 6 : 0);
    torch::nn::BatchNorm1d one(3);
    const at::Tensor expected = one->forward(joint);
    EXPECT_TRUE(torch::allclose(layer->running_var, one->running_var, 1e-5, 1e-6));
    if (group->rank() == 0) {
      EXPECT_TRUE(torch::allclose(output, expected, 1e-5, 1e-5));
    }
  });
}

// One row on each rank, which has no statistics of its own.
TEST(SyncBatchNorm, TheLayerTakesOneValuePerChannel) {
  for (const c10::optional<double> momentum :
       {c10::optional<double>(0.1), c10::optional<double>()}) {
    const auto options = torch::nn::BatchNormOptions(4).momentum(momentum);
    const at::Tensor joint = random_tensor({3, 4}, 1).to(at::kDouble) * 3 + 1;
    torch::nn::BatchNorm1d one(options);
    fill(*one, 4);
    one->to(at::kDouble);
    const at::Tensor expected_input = joint.clone().requires_grad_();
    one->forward(joint * 2);
    const at::Tensor expected = one->forward(expected_input);
    expected.pow(3).sum().backward();
    one->eval();
    const at::Tensor evaluated = one->forward(joint);
    run_ranks({3}, [&](const GroupPtr& group) {
      SyncBatchNorm layer(options, group);
      fill(*layer, 4);
      layer->to(at::kDouble);
      const at::Tensor input = joint.narrow(0, group->rank(), 1).clone().requires_grad_();
      layer->forward(input.detach() * 2);
      const at::Tensor output = layer->forward(input);
      output.pow(3).sum().backward();
      EXPECT_TRUE(torch::allclose(output, expected.narrow(0, group->rank(), 1), 1e-12, 1e-12));
      EXPECT_TRUE(torch::allclose(input.grad(), expected_input.grad().narrow(0, group->rank(), 1),
                                  1e-9, 1e-9));
      EXPECT_TRUE(torch::allclose(layer->running_var, one->running_var, 1e-12, 1e-12));
      EXPECT_TRUE(torch::allclose(layer->running_mean, one->running_mean, 1e-12, 1e-12));
      EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 2);
      layer->eval();
      EXPECT_TRUE(torch::allclose(layer->forward(joint), evaluated, 1e-12, 1e-12));
      EXPECT_THAT(error_of([&] {
                    layer->forward(torch::ones({2, 3}, at::kDouble));
                  }),
                  HasSubstr("the input is [2, 3], expected [N, 4, ...]"));
    });
  }
}

// A checkpoint of the one is the other's.
TEST(SyncBatchNorm, TheLayerHasTheNamesOfLibTorchs) {
  run_ranks({1}, [](const GroupPtr& group) {
    SyncBatchNorm layer(torch::nn::BatchNormOptions(4), group);
    const torch::nn::BatchNorm2d other(4);
    EXPECT_EQ(layer->named_parameters().keys(), other->named_parameters().keys());
    EXPECT_EQ(layer->named_buffers().keys(), other->named_buffers().keys());
    // Without a group it is an ordinary one.
    SyncBatchNorm alone(torch::nn::BatchNormOptions(4), nullptr);
    const at::Tensor input = random_tensor({5, 4, 2, 2}, 1);
    EXPECT_TRUE(same_bytes(alone->forward(input), torch::nn::BatchNorm2d(4)->forward(input)));
  });
}

// Without running statistics, LibTorch normalizes with those of the batch in evaluation, too.
TEST(SyncBatchNorm, EvaluationWithoutRunningStatisticsIsNobodyElsesAffair) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto make = [] {
      torch::nn::BatchNorm1d layer(torch::nn::BatchNorm1dOptions(3).track_running_stats(false));
      fill(*layer, 4);
      return layer;
    };
    torch::nn::BatchNorm1d converted = make();
    EXPECT_EQ(convert_sync_batchnorm(*converted, group), 1U);
    converted->eval();
    if (group->rank() != 0) return;
    const at::Tensor input = random_tensor({5, 3}, 1);
    EXPECT_TRUE(same_bytes(converted->forward(input), make()->forward(input)));
  });
}

TEST(SyncBatchNorm, OtherLayersAreLibTorchsOwn) {
  run_ranks({1}, [](const GroupPtr& group) {
    const at::Tensor input = random_tensor({5, 3}, 1);
    torch::nn::BatchNorm1d before(3);
    const at::Tensor expected = before->forward(input);
    torch::nn::BatchNorm1d converted(3);
    convert_sync_batchnorm(*converted, group);
    torch::nn::BatchNorm1d other(3);
    EXPECT_TRUE(same_bytes(other->forward(input), expected));
    // Taken back.
    EXPECT_EQ(convert_sync_batchnorm(*converted, nullptr), 1U);
    EXPECT_TRUE(same_bytes(converted->forward(input), expected));
    torch::nn::BatchNorm1d nameless(
        torch::nn::BatchNorm1dOptions(3).affine(false).track_running_stats(false));
    EXPECT_THAT(error_of([&] { convert_sync_batchnorm(*nameless, group); }),
                HasSubstr("neither weight nor running statistics"));
  });
}

}  // namespace
}  // namespace ddp::test
