#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/reducer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// Two heads, of which a forward uses one, both or none.
struct Heads : torch::nn::Module {
  Heads() {
    trunk = register_module("trunk", torch::nn::Linear(6, 5));
    left = register_module("left", torch::nn::Linear(5, 2));
    right = register_module("right", torch::nn::Linear(5, 2));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x, bool use_left, bool use_right) {
    const at::Tensor h = trunk(x);
    at::Tensor sum = h.sum();
    if (use_left) sum = sum + left(h).sum();
    if (use_right) sum = sum + right(h).sum();
    return sum;
  }
  torch::nn::Linear trunk{nullptr};
  torch::nn::Linear left{nullptr};
  torch::nn::Linear right{nullptr};
};

TEST(UnusedParameters, AreAnErrorThatNamesThemOnThatRankAndReachesTheOthers) {
  run_ranks({3}, [](const GroupPtr& group) {
    try {
      // Rank 1 may be done with all of this before another rank has come out of the constructor.
      DistributedDataParallel model(std::make_shared<Heads>(), group);
      model(input_of(group->rank()), true, group->rank() != 1).backward();
      ADD_FAILURE() << "no error";
    } catch (const CollectiveError& error) {
      EXPECT_NE(group->rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 aborted"));
      EXPECT_THAT(error.what(), HasSubstr("right.weight"));
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(group->rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("2 of 6 parameters got no gradient"));
      EXPECT_THAT(error.what(), HasSubstr("right.weight, right.bias;"));
    }
  });
}

TEST(UnusedParameters, AreAnErrorInAGroupOfOneThatTheNextBackwardForgets) {
  run_ranks({1}, [](const GroupPtr& group) {
    DistributedDataParallel model(std::make_shared<Heads>(), group);
    EXPECT_THAT(error_of([&] { model(input_of(0), false, true).backward(); }),
                HasSubstr("left.weight, left.bias"));
    EXPECT_EQ(error_of([&] { model(input_of(0), true, true).backward(); }), "no error");
    EXPECT_THAT(error_of([&] { model(input_of(0), true, false).backward(); }),
                HasSubstr("right.weight"));
  });
}

class FindUnused : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(BucketViews, FindUnused, testing::Bool());

TEST_P(FindUnused, OneRankUsesItAllGetTheAverageNobodyDoesItStaysAsItIs) {
  for (double cap : {25.0, 1e-5}) {
    run_ranks({3}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options;
      options.find_unused_parameters = true;
      options.gradient_as_bucket_view = GetParam();
      options.bucket_cap_mb = cap;
      DistributedDataParallel model(std::make_shared<Heads>(), group, options);
      Heads& module = model.module();
      const int rank = group->rank();

      model(input_of(0), rank == 0, false).backward();
      const at::Tensor alone = [&] {
        Heads reference;
        reference.forward(input_of(0), true, false).backward();
        return reference.left->weight.grad();
      }();
      const at::Tensor zero = torch::zeros_like(alone);
      const at::Tensor third = average({alone, zero, zero});
      EXPECT_TRUE(same_bytes(module.left->weight.grad(), third));
      EXPECT_FALSE(module.right->weight.grad().defined());

      // Not zeroed and used by nobody: not touched. The value is one whose average over three ranks
      // is another number.
      const at::Tensor kept = torch::full_like(alone, 0.412523090839386);
      ASSERT_FALSE(same_bytes(average({kept, kept, kept}), kept));
      module.left->weight.grad().copy_(kept);
      model(input_of(0), false, rank == 2).backward();
      EXPECT_TRUE(same_bytes(module.left->weight.grad(), kept));
      EXPECT_TRUE(same_bytes(module.right->weight.grad(), average({zero, zero, alone})));

      model.zero_grad();
      model(input_of(0), true, true).backward();
      EXPECT_TRUE(same_bytes(module.left->weight.grad(), average({alone, alone, alone})));

      // A rank without a gradient does not send what its bucket has from the step before.
      model.zero_grad();
      model(input_of(0), rank == 1, true).backward();
      EXPECT_TRUE(same_bytes(module.left->weight.grad(), average({zero, alone, zero})));
    });
  }
}

TEST_P(FindUnused, UseInNoSyncCountsForTheNextReduction) {
  for (bool find_unused : {false, true}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options;
      options.find_unused_parameters = find_unused;
      options.gradient_as_bucket_view = GetParam();
      DistributedDataParallel model(std::make_shared<Heads>(), group, options);
      {
        const auto guard = model.no_sync();
        model(input_of(group->rank()), true, false).backward();
      }
      const at::Tensor left = model.module().left->weight.grad().clone();
      at::Tensor both = torch::empty({2, left.numel()});
      const at::Tensor flat = left.flatten().contiguous();
      group
          ->all_gather({flat.data_ptr(), static_cast<std::size_t>(flat.numel()), DType::kF32},
                       {both.data_ptr(), static_cast<std::size_t>(both.numel()), DType::kF32})
          ->wait();
      model(input_of(group->rank()), false, true).backward();
      EXPECT_TRUE(
          same_bytes(model.module().left->weight.grad().flatten(), average({both[0], both[1]})));
    });
  }
}

// The second layer uses the first one's weight.
struct Tied : torch::nn::Module {
  Tied() {
    first = register_module("first", torch::nn::Linear(6, 6));
    tied = register_parameter("tied", first->weight);
    bias = register_parameter("bias", torch::zeros({6}));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::linear(torch::tanh(first(x)), tied, bias);
  }
  torch::nn::Linear first{nullptr};
  at::Tensor tied;
  at::Tensor bias;
};

TEST(SharedParameters, AreReducedOnce) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(std::make_shared<Tied>(), group);
    std::size_t slots = 0;
    for (const buckets::BucketLayout& bucket : model.reducer().buckets())
      slots += bucket.slots.size();
    EXPECT_EQ(slots, 3U);
    loss_of(model(input_of(group->rank()))).backward();
    std::vector<at::Tensor> terms;
    for (int rank = 0; rank < 2; ++rank) {
      Tied reference;
      loss_of(reference.forward(input_of(rank))).backward();
      terms.push_back(reference.tied.grad());
    }
    EXPECT_TRUE(same_bytes(model.module().tied.grad(), average(terms)));
    EXPECT_TRUE(model.module().first->weight.grad().is_same(model.module().tied.grad()));
  });
}

TEST(FrozenParameters, TakeNoPart) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7 + static_cast<std::uint64_t>(group->rank()));
    module->layers[0]->weight.requires_grad_(false);
    DistributedDataParallel model(module, group);
    EXPECT_TRUE(same_bytes(module->layers[0]->weight, make_mlp(7)->layers[0]->weight));
    loss_of(model(input_of(group->rank()))).backward();
    EXPECT_FALSE(module->layers[0]->weight.grad().defined());
    EXPECT_TRUE(module->layers[0]->bias.grad().defined());
  });
}

}  // namespace
}  // namespace ddp::test
