// Computing in one type, reducing in another, stepping in the parameters' own.
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

// What mixed precision has to give for make_mlp(7): gradients computed in bfloat16 by each rank,
// added in float32, rounded to `reduce` once.
std::map<std::string, at::Tensor> low_precision_average(int world, at::ScalarType reduce,
                                                        const std::vector<at::Tensor>& weights,
                                                        int step) {
  std::map<std::string, std::vector<at::Tensor>> terms;
  for (int rank = 0; rank < world; ++rank) {
    auto module = make_mlp(7);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < weights.size(); ++i) module->parameters()[i].copy_(weights[i]);
    }
    module->to(torch::kBFloat16);
    loss_of(module->forward(input_of(rank, step).to(torch::kBFloat16))).backward();
    for (const auto& item : module->named_parameters()) {
      terms[item.key()].push_back(item.value().grad().to(torch::kFloat));
    }
  }
  std::map<std::string, at::Tensor> result;
  for (auto& [name, of_ranks] : terms) {
    result[name] = average(of_ranks).to(reduce).to(torch::kFloat);
  }
  return result;
}

TEST(MixedPrecision, ComputesLowAndAveragesAsAskedButStepsInFull) {
  for (const at::ScalarType reduce : {torch::kBFloat16, torch::kFloat}) {
    for (const int world : {1, 2, 4}) {
      for (const bool views : {false, true}) {
        run_ranks({world}, [&](const GroupPtr& group) {
          DistributedDataParallelOptions options;
          options.mixed_precision.param_dtype = torch::kBFloat16;
          options.mixed_precision.reduce_dtype = reduce;
          options.gradient_as_bucket_view = views;
          DistributedDataParallel model(make_mlp(7), group, options);
          torch::optim::SGD optimizer(model.module().parameters(), 0.1);
          for (int step = 0; step < 3; ++step) {
            model.zero_grad();
            std::vector<at::Tensor> weights;
            for (const auto& parameter : model.module().parameters()) {
              EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
              weights.push_back(parameter.detach().clone());
            }
            const at::Tensor output = model(input_of(group->rank(), step));
            EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
            loss_of(output).backward();
            const auto expected = low_precision_average(world, reduce, weights, step);
            for (const auto& item : model.module().named_parameters()) {
              EXPECT_TRUE(same_bytes(item.value().grad(), expected.at(item.key())))
                  << item.key() << " world " << world << " step " << step;
            }
            optimizer.step();
          }
        });
      }
    }
  }
}

TEST(MixedPrecision, LeavesFullParametersBehindNoSyncAndForwardsWithoutGradients) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    auto module = make_mlp(7);
    module->register_buffer("scale", torch::ones({1}));
    module->register_buffer("count", torch::ones({1}, torch::kLong));
    DistributedDataParallel model(module, group, options);
    EXPECT_EQ(module->named_buffers()["scale"].scalar_type(), torch::kBFloat16);
    EXPECT_EQ(module->named_buffers()["count"].scalar_type(), torch::kLong);
    const std::string before = bytes_of(*module);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(model(input_of(0)).scalar_type(), torch::kBFloat16);
    }
    EXPECT_EQ(bytes_of(*module), before);
    {
      const auto guard = model.no_sync();
      loss_of(model(input_of(group->rank(), 0))).backward();
    }
    EXPECT_EQ(bytes_of(*module), before);
    EXPECT_EQ(module->layers[0]->weight.grad().scalar_type(), torch::kFloat);
    const at::Tensor local = module->layers[0]->weight.grad().clone();
    loss_of(model(input_of(group->rank(), 1))).backward();
    EXPECT_EQ(bytes_of(*module), before);
    EXPECT_FALSE(same_bytes(module->layers[0]->weight.grad(), local));
    const at::Tensor both = module->layers[0]->weight.grad();
    EXPECT_EQ(both.scalar_type(), torch::kFloat);
  });
}

}  // namespace
}  // namespace ddp::test
