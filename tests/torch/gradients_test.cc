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
#include "worker/ddp/averaging/reducer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

class DataParallelModes : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, DataParallelModes, testing::ValuesIn(modes()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(DataParallelModes, GradientsAreTheAverageInTreeOrderToTheBit) {
  for (const std::vector<int>& nodes : {std::vector<int>{1}, {2}, {3}, {2, 1}, {3, 2}}) {
    run_ranks(nodes, [&](const GroupPtr& group) {
      DistributedDataParallel model(make_mlp(7 + static_cast<std::uint64_t>(group->rank())), group,
                                    GetParam().options);
      for (int step = 0; step < 3; ++step) {
        model.zero_grad();
        loss_of(model(input_of(group->rank(), step))).backward();
        expect_average_gradients(model.module(), group->size(), {step});
      }
    });
  }
}

// Its gradient is the input.
struct Weighted : torch::nn::Module {
  explicit Weighted(at::ScalarType type) {
    weight = register_parameter("weight", torch::ones({40}, type));
  }
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
  at::Tensor weight;
};

TEST(GradientTypes, HalvesAreAveragedInFloat32AndRoundedOnce) {
  for (const at::ScalarType type : {torch::kHalf, torch::kBFloat16}) {
    const auto input = [&](int rank) {
      return random_tensor({40}, 31 + static_cast<std::uint64_t>(rank)).to(type);
    };
    run_ranks({3}, [&](const GroupPtr& group) {
      DistributedDataParallel model(std::make_shared<Weighted>(type), group);
      model(input(group->rank())).backward();
      std::vector<at::Tensor> terms;
      for (int rank = 0; rank < 3; ++rank) terms.push_back(input(rank).to(torch::kFloat));
      EXPECT_TRUE(same_bytes(model.module().weight.grad(), average(terms).to(type)));
    });
  }
}

TEST_P(DataParallelModes, NoSyncAccumulatesAndTheNextBackwardReducesTheSum) {
  run_ranks({3}, [&](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group, GetParam().options);
    for (int round = 0; round < 2; ++round) {
      {
        const auto guard = model.no_sync();
        loss_of(model(input_of(group->rank(), 0))).backward();
        { const auto nested = model.no_sync(); }
        loss_of(model(input_of(group->rank(), 1))).backward();
      }
      for (auto& [name, gradient] : gradients_of(model.module())) {
        EXPECT_TRUE(same_bytes(gradient, local_gradients(group->rank(), {0, 1}).at(name))) << name;
      }
      loss_of(model(input_of(group->rank(), 2))).backward();
      expect_average_gradients(model.module(), 3, {0, 1, 2});
      model.zero_grad(round == 0);
    }
  });
}

TEST_P(DataParallelModes, TwoForwardsThenOneBackward) {
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group, GetParam().options);
    const at::Tensor first = loss_of(model(input_of(group->rank(), 0)));
    const at::Tensor second = loss_of(model(input_of(group->rank(), 1)));
    (first + second).backward();
    auto expected = make_mlp(7);
    at::Tensor joint;
    for (int rank = 0; rank < 2; ++rank) {
      for (int step = 0; step < 2; ++step) {
        const at::Tensor loss = loss_of(expected->forward(input_of(rank, step))) / 2;
        joint = joint.defined() ? joint + loss : loss;
      }
    }
    joint.backward();
    for (const auto& item : expected->named_parameters()) {
      EXPECT_TRUE(torch::allclose(model.module().named_parameters()[item.key()].grad(),
                                  item.value().grad(), 1e-5, 1e-7))
          << item.key();
    }
  });
}

TEST_P(DataParallelModes, ASecondBackwardAddsItsAverage) {
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group, GetParam().options);
    const at::Tensor loss = loss_of(model(input_of(group->rank())));
    loss.backward({}, /*retain_graph=*/true);
    const auto once = gradients_of(model.module());
    loss.backward();
    const auto twice = gradients_of(model.module());
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(torch::allclose(once[i].second * 2, twice[i].second, 1e-6, 1e-8))
          << once[i].first;
    }
  });
}

TEST_P(DataParallelModes, BothWaysOfZeroGradKeepGradientsUsable) {
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group, GetParam().options);
    torch::optim::SGD optimizer(model.module().parameters(), 0.0);
    for (int step = 0; step < 6; ++step) {
      if (step % 3 == 0) model.zero_grad(/*set_to_none=*/false);
      if (step % 3 == 1) optimizer.zero_grad();
      if (step % 3 == 2) model.zero_grad();
      for (const auto& [name, gradient] : gradients_of(model.module())) {
        EXPECT_EQ(gradient.abs().max().item<float>(), 0) << name;
        EXPECT_NE(step % 3, 2);
      }
      loss_of(model(input_of(group->rank(), step))).backward();
      expect_average_gradients(model.module(), 2, {step});
    }
  });
}

TEST(DataParallel, GradientsAreTheBucketsIfAskedFor) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    DistributedDataParallel model(make_mlp(7), group, options);
    const auto parameters = model.module().parameters();
    for (int step = 0; step < 3; ++step) {
      model.zero_grad(/*set_to_none=*/step == 1);
      loss_of(model(input_of(group->rank()))).backward();
      for (const at::Tensor& parameter : parameters) {
        EXPECT_TRUE(parameter.grad().is_alias_of(parameters[0].grad()));
      }
    }
  });
}

TEST(DataParallel, EveryBucketSizeGivesTheSameBytes) {
  std::vector<std::string> results(5);
  for (std::size_t i = 0; i < results.size(); ++i) {
    run_ranks({3}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options;
      const double caps[] = {25, 1e-6, 1e-4, 3e-4, 1e-3};
      options.bucket_cap_mb = caps[i];
      DistributedDataParallel model(make_mlp(7, {6, 17, 13, 4}), group, options);
      EXPECT_EQ(model.reducer().buckets().size() == 1, i == 0);
      torch::optim::SGD optimizer(model.module().parameters(),
                                  torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 5; ++step) {
        model.zero_grad();
        loss_of(model(input_of(group->rank(), step))).backward();
        optimizer.step();
      }
      if (group->rank() == 0) results[i] = bytes_of(model.module());
    });
    EXPECT_EQ(results[i], results[0]) << i;
  }
}

}  // namespace
}  // namespace ddp::test
