// Ranks with different numbers of batches.
#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "worker/ddp/tensors/tensors.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// What training with these numbers of batches has to give, computed in one place: ranks without
// input give zeros.
std::string joint_weights(const std::vector<int>& batches, bool by_initial_size,
                          std::uint64_t seed = 7) {
  const auto world = static_cast<int>(batches.size());
  auto module = make_mlp(seed);
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  const int most = *std::max_element(batches.begin(), batches.end());
  for (int step = 0; step < most; ++step) {
    std::vector<std::vector<at::Tensor>> terms(module->parameters().size());
    int live = 0;
    for (int rank = 0; rank < world; ++rank) {
      module->zero_grad();
      const bool has_input = step < batches[static_cast<std::size_t>(rank)];
      live += has_input ? 1 : 0;
      if (has_input) loss_of(module->forward(input_of(rank, step))).backward();
      for (std::size_t i = 0; i < terms.size(); ++i) {
        const at::Tensor parameter = module->parameters()[i];
        terms[i].push_back(has_input ? parameter.grad().clone() : torch::zeros_like(parameter));
      }
    }
    for (std::size_t i = 0; i < terms.size(); ++i) {
      at::Tensor& gradient = module->parameters()[i].mutable_grad();
      gradient = average(terms[i]);
      if (!by_initial_size) gradient = gradient * (static_cast<double>(world) / live);
    }
    optimizer.step();
  }
  return bytes_of(*module);
}

void expect_close(const std::string& a, const std::string& b) {
  ASSERT_EQ(a.size(), b.size());
  const auto size = static_cast<std::int64_t>(a.size() / sizeof(float));
  const auto floats = [&](const std::string& bytes) {
    return torch::from_blob(const_cast<char*>(bytes.data()), {size}, torch::kFloat);  // NOLINT
  };
  EXPECT_LE((floats(a) - floats(b)).abs().max().item<float>(), 1e-6F);
}

class JoinModes : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, JoinModes, testing::ValuesIn(modes()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(JoinModes, RanksWithoutInputGiveZerosAndGetTheLastModel) {
  for (const std::vector<int>& batches :
       {std::vector<int>{2, 5, 3}, {0, 2, 2}, {3, 3, 3}, {4, 0, 0}}) {
    for (const bool by_initial_size : {true, false}) {
      SCOPED_TRACE(testing::Message() << batches[0] << batches[1] << batches[2] << by_initial_size);
      const std::string expected = joint_weights(batches, by_initial_size);
      run_ranks({3}, [&](const GroupPtr& group) {
        const int rank = group->rank();
        DistributedDataParallel model(make_mlp(7), group, GetParam().options);
        torch::optim::SGD optimizer(model.module().parameters(), 0.1);
        {
          const auto join = model.join(by_initial_size);
          for (int step = 0; step < batches[static_cast<std::size_t>(rank)]; ++step) {
            model.zero_grad();
            loss_of(model(input_of(rank, step))).backward();
            optimizer.step();
          }
        }
        expect_close(bytes_of(model.module()), expected);
        // And they can train together again.
        model.zero_grad();
        loss_of(model(input_of(rank))).backward();
        at::Tensor all = torch::empty({3, 5});
        const at::Tensor mine = model.module().layers[0]->bias.grad().contiguous();
        group->all_gather(buffer_of(mine), buffer_of(all))->wait();
        EXPECT_TRUE(same_bytes(all[0], all[2]));
      });
    }
  }
}

// Its gradient is as large as it is told.
struct Steep : torch::nn::Module {
  Steep() : weight(register_parameter("weight", torch::ones({4}))) {}
  at::Tensor forward(double slope) { return (weight * slope).sum(); }
  at::Tensor weight;
};

// Whose sum float16 cannot hold.
TEST(Join, DividingByTheRanksWithInputKeepsLargeAveragesFinite) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.mixed_precision.reduce_dtype = torch::kHalf;
    DistributedDataParallel model(std::make_shared<Steep>(), group, options);
    const auto join = model.join(/*divide_by_initial_world_size=*/false);
    for (int step = 0; step < (group->rank() == 0 ? 1 : 3); ++step) {
      model.zero_grad();
      model(40'000.0).backward();
      EXPECT_TRUE(torch::equal(model.module().weight.grad(), torch::full({4}, 40'000.0))) << step;
    }
  });
}

TEST(Join, DividingByTheInitialSizeIsTheAverageWithZerosToTheBit) {
  const std::string expected = joint_weights({1, 3}, true);
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group);
    torch::optim::SGD optimizer(model.module().parameters(), 0.1);
    model.with_join([&] {
      for (int step = 0; step < (group->rank() == 0 ? 1 : 3); ++step) {
        model.zero_grad();
        loss_of(model(input_of(group->rank(), step))).backward();
        optimizer.step();
      }
    });
    EXPECT_EQ(bytes_of(model.module()), expected);
  });
}

TEST(Join, HooksRunOnTheZerosOfRanksWithoutInput) {
  const std::string expected = joint_weights({3, 1}, true);
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel model(make_mlp(7), group, options);
    const auto calls = std::make_shared<int>(0);
    model.register_comm_hook(calls, [&](int& count, GradBucket& bucket) {
      ++count;
      WorkPtr work = group->all_reduce(buffer_of(bucket.buffer()), ReduceOp::kAvg);
      return Future(std::move(work), bucket.buffer());
    });
    torch::optim::SGD optimizer(model.module().parameters(), 0.1);
    model.with_join([&] {
      for (int step = 0; step < (group->rank() == 0 ? 3 : 1); ++step) {
        model.zero_grad();
        loss_of(model(input_of(group->rank(), step))).backward();
        optimizer.step();
      }
    });
    EXPECT_EQ(*calls, 12);
    EXPECT_EQ(bytes_of(model.module()), expected);
  });
}

struct Normed : torch::nn::Module {
  Normed() {
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x) { return loss_of(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(Join, BuffersComeFromTheLowestRankWithInput) {
  run_ranks({3}, [](const GroupPtr& group) {
    const int rank = group->rank();
    DistributedDataParallel model(std::make_shared<Normed>(), group);
    Normed expected;  // Step 0 as rank 0 sees it, then as rank 1 does.
    {
      const auto join = model.join();
      for (int step = 0; step < (rank == 0 ? 2 : 5); ++step) {
        model(input_of(rank, step)).backward();
        const torch::NoGradGuard no_grad;
        expected.forward(input_of(step < 1 ? 0 : 1, step));
        if (step < 4) continue;
        EXPECT_TRUE(rank != 1 ||
                    same_bytes(model.module().norm->running_mean, expected.norm->running_mean));
      }
    }
    const at::Tensor mean = model.module().norm->running_mean.clone();
    at::Tensor all = torch::empty({3, 6});
    group->all_gather(buffer_of(mean), buffer_of(all))->wait();
    EXPECT_TRUE(same_bytes(all[0], all[2]));
    EXPECT_TRUE(same_bytes(all[1], all[2]));
  });
}

TEST(Join, TheFirstEndEndsAllIfAskedTo) {
  run_ranks({3}, [](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group);
    int steps = 0;
    const std::string error = error_of([&] {
      model.with_join(
          [&] {
            for (int step = 0; step < (group->rank() == 1 ? 2 : 5); ++step) {
              model.zero_grad();
              loss_of(model(input_of(group->rank(), step))).backward();
              ++steps;
            }
          },
          {.throw_on_early_termination = true});
    });
    EXPECT_THAT(error, HasSubstr("rank 1 has no input left"));
    EXPECT_EQ(steps, 2);
    group->barrier()->wait();  // The group is as good as before.
  });
}

TEST(Join, WithEqualInputNothingIsThrown) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group);
    model.with_join(
        [&] {
          for (int step = 0; step < 2; ++step) {
            model.zero_grad();
            loss_of(model(input_of(group->rank(), step))).backward();
            expect_average_gradients(model.module(), 2, {step});
          }
        },
        {.throw_on_early_termination = true});
    const auto off = model.join(/*divide_by_initial_world_size=*/true, /*enable=*/false);
    EXPECT_FALSE(model.stats().join_uneven_inputs);
  });
}

TEST(Join, AnExceptionInItsScopeEndsTheGroup) {
  run_ranks({2}, [](const GroupPtr& group) {
    // Rank 1 may be through with making its model, and out of join, before rank 0 is.
    EXPECT_THAT(
        error_of([&] {
          DistributedDataParallel model(make_mlp(7), group);
          const auto join = model.join();
          if (group->rank() == 1) throw std::domain_error("no data today");
        }),
        testing::AnyOf(HasSubstr("no data today"), HasSubstr("left join with an exception")));
  });
}

// A training of two models in turn, the second with its optimizer divided among the ranks.
TEST(Join, SeveralModelsTogether) {
  for (const std::vector<int>& batches : {std::vector<int>{2, 5, 3}, {0, 2, 2}, {3, 3, 3}}) {
    SCOPED_TRACE(testing::Message() << batches[0] << batches[1] << batches[2]);
    const std::string first = joint_weights(batches, true, 7);
    const std::string second = joint_weights(batches, true, 9);
    run_ranks({3}, [&](const GroupPtr& group) {
      const int rank = group->rank();
      DistributedDataParallel a(make_mlp(7), group);
      DistributedDataParallel b(make_mlp(9), group);
      torch::optim::SGD optimizer_a(a.module().parameters(), 0.1);
      torch::optim::SGD inner_b(b.module().parameters(), 0.1);
      ZeroRedundancyOptimizer optimizer_b(inner_b, b);
      {
        const Join join({&a.core(), &b.core()}, {});
        for (int step = 0; step < batches[static_cast<std::size_t>(rank)]; ++step) {
          a.zero_grad();
          loss_of(a(input_of(rank, step))).backward();
          optimizer_b.zero_grad();
          loss_of(b(input_of(rank, step))).backward();
          optimizer_b.step();
          optimizer_a.step();
        }
      }
      expect_close(bytes_of(a.module()), first);
      expect_close(bytes_of(b.module()), second);
      a.zero_grad();
      loss_of(a(input_of(rank))).backward();
    });
  }
}

TEST(Join, TheFirstEndOfSeveralModelsEndsAllIfAskedTo) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel a(make_mlp(7), group);
    DistributedDataParallel b(make_mlp(9), group);
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        for (auto* model : {&a, &b}) {
          model->zero_grad();
          loss_of((*model)(input_of(group->rank(), step))).backward();
        }
      }
    };
    EXPECT_THAT(error_of([&] {
                  Join join({&a.core(), &b.core()}, {.throw_on_early_termination = true});
                  train(group->rank() == 0 ? 1 : 3);
                  join.finish();
                }),
                HasSubstr("no input left"));
    train(1);  // The group lives, and both models are outside of the scope.
  });
}

TEST(Join, SeveralModelsThatCannotBeJoinedAreNamed) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto other = group->split(0);
    DistributedDataParallel a(make_mlp(7), group);
    DistributedDataParallel b(make_mlp(9), group);
    DistributedDataParallel c(make_mlp(7), other);
    EXPECT_THAT(error_of([&] {
                  const Join join({&a.core(), &c.core()}, {});
                }),
                HasSubstr("use different groups"));
    EXPECT_THAT(error_of([&] { const Join join(std::vector<DistributedDataParallelCore*>{}, {}); }),
                HasSubstr("was given no model"));
    EXPECT_THAT(error_of([&] {
                  const Join join({&a.core(), &b.core()}, {});
                  const at::Tensor input = input_of(group->rank());
                  (loss_of(a(input)) + loss_of(b(input))).backward();
                }),
                HasSubstr("call backward() for each model's loss by itself"));
  });
}

TEST(Join, StaticGraphsAndEmbeddingsToo) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.static_graph = true;
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    fill(*table, 7);
    DistributedDataParallel model(table, group, options);
    const at::Tensor words = torch::arange(0, 3);
    {
      const auto join = model.join();
      for (int step = 0; step < (group->rank() == 0 ? 1 : 3); ++step) {
        model.zero_grad();
        model(words).sum().backward();
        const at::Tensor expected = torch::zeros({10, 4});
        expected.narrow(0, 0, 3).fill_(step == 0 ? 1 : 0.5);
        EXPECT_TRUE(torch::equal(table->weight.grad().to_dense(), expected)) << step;
      }
    }
  });
}

}  // namespace
}  // namespace ddp::test
