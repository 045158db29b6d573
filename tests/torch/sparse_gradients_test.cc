// Embeddings whose gradients are sparse.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// An embedding and a layer on its mean.
struct Words : torch::nn::Module {
  explicit Words(bool sparse) {
    table = register_module(
        "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(sparse)));
    layer = register_module("layer", torch::nn::Linear(4, 3));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& words, bool use_table = true) {
    if (!use_table) return layer(torch::ones({1, 4}, layer->weight.options()));
    return layer(table(words));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};

at::Tensor words_of(int rank, int step) {
  return torch::randint(10, {2 + rank}, seeded(static_cast<std::uint64_t>(17 * rank + step)))
      .to(torch::kLong);
}

TEST(SparseGradients, AreTheAverageOfTheDenseOnes) {
  for (const int world : {1, 2, 3}) {
    run_ranks({world}, [&](const GroupPtr& group) {
      DistributedDataParallel sparse(std::make_shared<Words>(true), group);
      DistributedDataParallel dense(std::make_shared<Words>(false), group);
      for (int step = 0; step < 4; ++step) {
        sparse.zero_grad(/*set_to_none=*/step != 1);
        dense.zero_grad(/*set_to_none=*/step != 1);
        if (step == 2) {
          const auto guard = sparse.no_sync();
          const auto other = dense.no_sync();
          loss_of(sparse(words_of(group->rank(), 9))).backward();
          loss_of(dense(words_of(group->rank(), 9))).backward();
        }
        loss_of(sparse(words_of(group->rank(), step))).backward();
        loss_of(dense(words_of(group->rank(), step))).backward();
        const at::Tensor gradient = sparse.module().table->weight.grad();
        ASSERT_EQ(gradient.layout(), at::kSparse);
        EXPECT_TRUE(
            torch::allclose(gradient.to_dense(), dense.module().table->weight.grad(), 1e-5, 1e-7))
            << step;
        EXPECT_TRUE(
            same_bytes(sparse.module().layer->weight.grad(), dense.module().layer->weight.grad()));
      }
    });
  }
}

TEST(SparseGradients, OfAnEmbeddingThatARankDoesNotUse) {
  run_ranks({3}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    DistributedDataParallel model(std::make_shared<Words>(true), group, options);
    const at::Tensor weight = model.module().table->weight;
    loss_of(model(words_of(0, 0), false)).backward();
    EXPECT_FALSE(weight.grad().defined());
    loss_of(model(words_of(0, 0), group->rank() == 1)).backward();
    Words reference(true);
    loss_of(reference.forward(words_of(0, 0))).backward();
    EXPECT_TRUE(torch::allclose(weight.grad().to_dense(),
                                reference.table->weight.grad().to_dense() / 3, 1e-5, 1e-8));
  });
}

// One rank sends its rows during backward, when parameters are low, the other at its end.
TEST(SparseGradients, TravelInOneTypeWithMixedPrecision) {
  for (const at::ScalarType reduce : {torch::kBFloat16, torch::kFloat}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options;
      options.find_unused_parameters = true;
      options.mixed_precision.param_dtype = torch::kBFloat16;
      options.mixed_precision.reduce_dtype = reduce;
      DistributedDataParallel model(std::make_shared<Words>(true), group, options);
      const at::Tensor weight = model.module().table->weight;
      loss_of(model(words_of(0, 0), group->rank() == 1)).backward();
      ASSERT_TRUE(weight.grad().defined());
      EXPECT_EQ(weight.grad().scalar_type(), torch::kFloat);
      Words reference(true);
      loss_of(reference.forward(words_of(0, 0))).backward();
      EXPECT_TRUE(torch::allclose(weight.grad().to_dense(),
                                  reference.table->weight.grad().to_dense() / 2, 0.05, 1e-3));
    });
  }
}

TEST(SparseGradients, TravelWhateverTheHookDoes) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(std::make_shared<Words>(true), group);
    model.register_comm_hook(std::make_shared<int>(0), [](int&, GradBucket& bucket) {
      for (const std::string& name : bucket.names()) EXPECT_THAT(name, HasSubstr("layer"));
      return Future(bucket.buffer().zero_());
    });
    loss_of(model(words_of(group->rank(), 0))).backward();
    EXPECT_GT(model.module().table->weight.grad().to_dense().abs().max().item<float>(), 0);
    EXPECT_EQ(model.module().layer->weight.grad().abs().max().item<float>(), 0);
  });
}

}  // namespace
}  // namespace ddp::test
