// Training with logical ranks: which worker has which ranks, and sums that have the same bits for
// any number of workers.
#include "worker/ddp/logical/logical_world.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/logical/logical_ranks.h"
#include "worker/ddp/logical/logical_reducer.h"
#include "worker/ddp/logical/logical_sum.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<RankRange> blocks(int size, int workers) {
  std::vector<RankRange> result;
  for (Rank worker = 0; worker < workers; ++worker) {
    result.push_back(LogicalWorld(size, worker, workers).own());
  }
  return result;
}

TEST(LogicalWorld, DealsContiguousBlocksOfWhichTheFirstHaveOneMore) {
  EXPECT_THAT(blocks(4, 1), ElementsAre(RankRange{0, 4}));
  EXPECT_THAT(blocks(4, 3), ElementsAre(RankRange{0, 2}, RankRange{2, 3}, RankRange{3, 4}));
  EXPECT_THAT(blocks(8, 3), ElementsAre(RankRange{0, 3}, RankRange{3, 6}, RankRange{6, 8}));
  for (int size = 1; size <= 40; ++size) {
    for (int workers = 1; workers <= size; ++workers) {
      const std::vector<RankRange> dealt = blocks(size, workers);
      int next = 0;
      for (const RankRange& block : dealt) {
        EXPECT_EQ(block.begin, next);
        EXPECT_GE(block.size(), size / workers);
        EXPECT_LE(block.size(), dealt.front().size());
        next = block.end;
      }
      EXPECT_EQ(next, size) << workers;
      EXPECT_LE(dealt.front().size() - dealt.back().size(), 1);
    }
  }
}

TEST(LogicalWorld, MoreWorkersThanLogicalRanksAreRefused) {
  EXPECT_THAT(error_of([] { LogicalWorld(2, 0, 3); }),
              testing::AllOf(HasSubstr("2 ranks"), HasSubstr("3 workers")));
}

TEST(LogicalWorld, KnowsWhenAGroupSumsInItsOrder) {
  const std::map<std::pair<int, int>, bool> expected = {
      {{4, 1}, true},  {{4, 2}, true},  {{4, 3}, false}, {{4, 4}, true},
      {{3, 2}, true},  {{6, 2}, false}, {{6, 3}, true},  {{7, 2}, true},
      {{8, 3}, false}, {{5, 4}, false}, {{7, 7}, true},  {{12, 3}, true}};
  for (const auto& [world, in_order] : expected) {
    EXPECT_EQ(LogicalWorld(world.first, 0, world.second).reduces_in_order(), in_order)
        << world.first << " on " << world.second;
  }
}

// What every logical rank has in each of two sums: numbers of many magnitudes, so that every order
// of additions has its own bits.
struct Numbers {
  Numbers(int size, std::int64_t count, at::ScalarType type) {
    for (std::uint64_t step = 0; step < terms.size(); ++step) {
      for (std::uint64_t logical = 0; logical < static_cast<std::uint64_t>(size); ++logical) {
        const std::uint64_t seed = 1000 * step + 2 * logical;
        terms[step].push_back(
            (random_tensor({count}, seed) * torch::exp2(8 * random_tensor({count}, seed + 1)))
                .to(type));
      }
      averages[step] = average(terms[step]);
    }
  }
  std::array<std::vector<at::Tensor>, 2> terms;
  std::array<at::Tensor, 2> averages;
};

void expect_average(const GroupPtr& group, const Numbers& numbers) {
  const auto size = static_cast<int>(numbers.terms[0].size());
  const at::Tensor& like = numbers.averages[0];
  const LogicalWorld world(size, group->rank(), group->size());
  LogicalSum sum(world, group, static_cast<std::size_t>(like.numel()), like.scalar_type());
  for (const std::size_t step : {0U, 1U}) {
    for (Rank logical = world.own().begin; logical < world.own().end; ++logical) {
      sum.next().copy_(numbers.terms[step][static_cast<std::size_t>(logical)]);
      sum.add();
    }
    EXPECT_TRUE(same_bytes(sum.average("numbers"), numbers.averages[step]))
        << size << " logical ranks on " << group->size() << " workers, " << describe(like);
  }
}

TEST(LogicalSum, HasTheBitsOfTheLogicalRanksTreeForAnyNumberOfWorkers) {
  std::vector<std::pair<int, Numbers>> worlds;
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
    worlds.emplace_back(size, Numbers(size, 37, at::kFloat));
    worlds.emplace_back(size, Numbers(size, 2000, at::kDouble));
  }
  for (const std::vector<int>& nodes :
       std::vector<std::vector<int>>{{1}, {2}, {3}, {2, 1}, {4}, {1, 1, 2}, {5}}) {
    run_ranks(nodes, [&](const GroupPtr& group) {
      for (const auto& [size, numbers] : worlds) {
        if (size >= group->size()) expect_average(group, numbers);
      }
    });
  }
}

TEST(LogicalSum, GathersLongSumsPieceByPiece) {
  // Three partial sums of 4 bytes: pieces are of 699,050 numbers.
  const Numbers numbers(4, 1'500'001, at::kFloat);
  run_ranks({3}, [&](const GroupPtr& group) { expect_average(group, numbers); });
}

TEST(LogicalSum, IsNotTakenFromARingWhichHasAnOrderOfItsOwn) {
  const Numbers numbers(17, 300'000, at::kFloat);
  run_ranks(std::vector<int>(17, 1),
            [&](const GroupPtr& group) { expect_average(group, numbers); });
}

TEST(LogicalSum, KeepsNoMoreThanOnePartialSumForEachLevelOfTheTree) {
  run_ranks({1}, [](const GroupPtr& group) {
    LogicalSum sum({64, 0, 1}, group, 1, at::kFloat);
    for (int logical = 0; logical < 64; ++logical) {
      sum.next().zero_();
      EXPECT_LE(sum.level(), 6U);
      sum.add();
    }
    EXPECT_EQ(sum.level(), 1U);
  });
}

TEST(LogicalSum, EveryLogicalRankIsAddedOnce) {
  run_ranks({2}, [](const GroupPtr& group) {
    LogicalSum sum({4, group->rank(), 2}, group, 1, at::kFloat);
    sum.add();
    EXPECT_THAT(error_of([&] { sum.average("numbers"); }), HasSubstr("1 of the 2"));
    sum.add();
    EXPECT_THAT(error_of([&] { sum.add(); }), HasSubstr("all 2 logical ranks"));
    sum.restart();
    EXPECT_EQ(sum.level(), 0U);
    EXPECT_THAT(error_of([&] { sum.average("numbers"); }), HasSubstr("0 of the 2"));
  });
}

// Backward of each logical rank of this worker, and the average.
template <typename Module, typename Backward>
void reduce(LogicalReducer& reducer, Module& module, Backward backward, bool set_to_none = true) {
  module.zero_grad(set_to_none);
  const RankRange own = reducer.world().own();
  for (Rank logical = own.begin; logical < own.end; ++logical) {
    backward(logical);
    reducer.add();
  }
  reducer.reduce();
}

TEST(LogicalReducer, GivesTheGradientsOfAWorldOfSoManyRanks) {
  for (const int workers : {1, 2, 3, 4}) {
    run_ranks({workers}, [](const GroupPtr& group) {
      for (const int size : {4, 5}) {
        auto module = make_mlp(7);
        LogicalReducer reducer(*module, group, size);
        for (const std::vector<int>& steps : std::vector<std::vector<int>>{{0}, {1, 2}}) {
          const auto backward = [&](Rank logical) {
            for (const int step : steps) {
              loss_of(module->forward(input_of(logical, step))).backward();
            }
          };
          reduce(reducer, *module, backward, /*set_to_none=*/size == 4);
          expect_average_gradients(*module, size, steps);
        }
      }
    });
  }
}

TEST(LogicalReducer, TrainsAsADistributedOptimizerDoesWithAsManyWorkers) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto train = [&](const GroupPtr& group, auto prepare) {
      auto module = make_mlp(7);
      module->to(type);
      torch::optim::SGD sgd(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      const auto backward = [&](Rank rank, int step) {
        loss_of(module->forward(input_of(rank, step).to(type))).backward();
      };
      auto take_step = prepare(group, *module, sgd, backward);
      for (int step = 0; step < 5; ++step) take_step(step);
      return bytes_of(*module);
    };
    std::string expected;
    run_ranks({3}, [&](const GroupPtr& group) {
      const std::string bytes = train(group, [](auto& in, auto& module, auto& sgd, auto& backward) {
        auto optimizer = std::make_shared<DistributedOptimizer>(sgd, module, in);
        return [=, &backward](int step) {
          optimizer->zero_grad();
          backward(in->rank(), step);
          optimizer->step();
        };
      });
      if (group->rank() == 0) expected = bytes;
    });
    for (const int workers : {1, 2, 3}) {
      run_ranks({workers}, [&](const GroupPtr& group) {
        EXPECT_EQ(train(group,
                        [](auto& in, auto& module, auto& sgd, auto& backward) {
                          auto reducer = std::make_shared<LogicalReducer>(module, in, 3);
                          return [=, &module, &sgd, &backward](int step) {
                            reduce(*reducer, module,
                                   [&](Rank logical) { backward(logical, step); });
                            sgd.step();
                          };
                        }),
                  expected)
            << workers << " workers, " << type_name(type);
      });
    }
  }
}

TEST(LogicalReducer, AParameterThatNoLogicalRankUsesKeepsNoGradient) {
  for (const int workers : {1, 3}) {
    run_ranks({workers}, [](const GroupPtr& group) {
      torch::nn::Linear all(2, 1);
      torch::nn::Linear some(2, 1);
      torch::nn::Linear none(2, 1);
      torch::nn::ModuleList list(all, some, none);
      LogicalReducer reducer(*list, group, 4);
      for (int step = 0; step < 3; ++step) {
        reduce(reducer, *list, [&](Rank logical) {
          const at::Tensor input = torch::ones({1, 2}) * (logical + 1);
          at::Tensor output = all(input);
          if (step < 2 && logical == 3 - step) output = output + some(input);
          output.sum().backward();
        });
        EXPECT_EQ(all->weight.grad()[0][0].item<double>(), 2.5);
        ASSERT_EQ(some->weight.grad().defined(), step < 2);
        if (step < 2) {
          EXPECT_EQ(some->weight.grad()[0][0].item<double>(), step == 0 ? 1 : 0.75);
        }
        EXPECT_FALSE(none->weight.grad().defined());
      }
    });
  }
}

TEST(LogicalReducer, RefusesWhatDiffersAndWhatItCannotAverage) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    EXPECT_THAT(error_of([&] { LogicalReducer(*module, group, 4 + group->rank()); }),
                HasSubstr("4 logical ranks"));
    EXPECT_THAT(error_of([&] { LogicalReducer(*module, group, 1); }), HasSubstr("2 workers"));
    LogicalReducer reducer(*module, group, 2);
    EXPECT_THAT(error_of([&] { reducer.reduce(); }), HasSubstr("0 of the 1"));
    reducer.add();
    EXPECT_THROW(reducer.add(), std::logic_error);
    reducer.restart();
    reducer.add();
    reducer.reduce();
  });
}

TEST(LogicalReducer, AGradientOfOtherSizesIsNamedEverywhere) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    LogicalReducer reducer(*module, group, 2);
    if (group->rank() == 0) {
      module->layers[1]->bias.mutable_grad() = torch::zeros({2});
      EXPECT_THROW(reducer.add(), std::invalid_argument);
    } else {
      EXPECT_THAT(error_of([&] {
                    reducer.add();
                    reducer.reduce();
                  }),
                  HasSubstr("rank 0 aborted the group: the gradient of layer1.bias (float32 [4]) "
                            "is float32 [2] on cpu; to be reduced, it must be dense, have its "
                            "parameter's sizes and be on its device, cpu"));
    }
  });
}

TEST(LogicalRanks, DrawFromGeneratorsOfTheirOwn) {
  const auto draw = [] { return torch::rand({3}); };
  LogicalRanks ranks(3, 40);
  std::vector<std::vector<at::Tensor>> drawn(3);
  for (int step = 0; step < 2; ++step) {
    for (Rank logical = 0; logical < 3; ++logical) {
      ranks.enter(logical);
      drawn[static_cast<std::size_t>(logical)].push_back(draw());
      ranks.leave(logical);
    }
  }
  for (std::size_t logical = 0; logical < 3; ++logical) {
    at::manual_seed(40 + logical);
    for (const at::Tensor& values : drawn[logical]) EXPECT_TRUE(same_bytes(values, draw()));
  }
}

TEST(LogicalRanks, GoOnExactlyWithAnotherNumberOfWorkers) {
  constexpr int kSize = 5;
  // Steps on 1, 3, 2 and 5 workers; all that is kept between them is what a checkpoint would have.
  CommHookState kept = LogicalRanks(kSize, 7).state();
  std::mutex drawing;  // Ranks are threads with one default generator.
  std::map<Rank, std::string> drawn;
  for (const int workers : {1, 3, 2, 5}) {
    const CommHookState before = kept;
    run_ranks({workers}, [&](const GroupPtr& group) {
      LogicalRanks ranks(kSize, 1);
      ranks.restore(before);
      const LogicalWorld world(kSize, group->rank(), workers);
      for (Rank logical = world.own().begin; logical < world.own().end; ++logical) {
        const std::scoped_lock lock(drawing);
        ranks.enter(logical);
        const at::Tensor values = torch::rand({3});
        ranks.leave(logical);
        drawn[logical].append(static_cast<const char*>(values.data_ptr()), values.nbytes());
        ranks.add_loss(logical, values[0].item<double>() / 3, logical);
      }
      ranks.gather(world, *group);
      if (group->rank() == 0) kept = ranks.state();
    });
  }
  std::vector<double> sums;
  for (Rank logical = 0; logical < kSize; ++logical) {
    at::manual_seed(7 + static_cast<std::uint64_t>(logical));
    std::string expected;
    double sum = 0;
    for (int step = 0; step < 4; ++step) {
      const at::Tensor values = torch::rand({3});
      expected.append(static_cast<const char*>(values.data_ptr()), values.nbytes());
      sum += values[0].item<double>() / 3;
    }
    EXPECT_EQ(drawn[logical], expected) << logical;
    sums.push_back(sum);
  }
  LogicalRanks ranks(kSize, 1);
  ranks.restore(kept);
  const double total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + sums[4];
  EXPECT_EQ(ranks.mean_loss(), total / (4 * (0 + 1 + 2 + 3 + 4)));
  ranks.clear_losses();
  ranks.add_loss(2, 6, 3);
  EXPECT_EQ(ranks.mean_loss(), 2);
}

TEST(LogicalRanks, RefuseTheStateOfAnotherNumber) {
  LogicalRanks ranks(3, 1);
  EXPECT_THAT(error_of([&] { ranks.restore(LogicalRanks(4, 1).state()); }),
              HasSubstr("3 logical ranks"));
}

}  // namespace
}  // namespace ddp::test
