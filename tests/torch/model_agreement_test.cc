#include <atomic>
#include <functional>
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

namespace ddp::test {
namespace {

using testing::HasSubstr;

class AllLayouts : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, AllLayouts, testing::ValuesIn(modes()),
                         [](const auto& tested) { return tested.param.name; });

// A module with what is hard to broadcast: other types, other layouts, nothing at all, much.
struct Assorted : torch::nn::Module {
  explicit Assorted(int rank) {
    const auto seed = static_cast<std::uint64_t>(rank);
    const auto add = [&](const char* name, const at::Tensor& tensor) {
      register_parameter(name, tensor, tensor.is_floating_point());
    };
    add("odd", random_tensor({3}, seed).to(torch::kDouble));
    add("transposed", random_tensor({5, 7}, seed).t());
    add("gaps", random_tensor({6, 8}, seed).slice(1, 0, 8, 3));
    add("channels_last", random_tensor({2, 3, 4, 5}, seed).to(at::MemoryFormat::ChannelsLast));
    add("large", random_tensor({700, 700}, seed));
    add("empty", torch::empty({0, 4}));
    add("scalar", random_tensor({}, seed));
    register_buffer("flag", torch::full({1}, rank == 0, torch::kBool));
    register_buffer("count", torch::full({}, rank + 5, torch::kLong));
    register_buffer("large_gaps", random_tensor({1200, 800}, seed).slice(1, 0, 800, 2));
    register_buffer("half", torch::full({3}, rank, torch::kHalf));
    register_buffer("none", torch::empty({0}));
  }
  at::Tensor forward() {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& parameter : parameters()) {
      sum = sum + (parameter.to(torch::kDouble) * (1 + buffers()[1])).sum();
    }
    return sum;
  }
};

TEST(DataParallel, ConstructionGivesEveryRankTheValuesOfRankZero) {
  const std::string expected = bytes_of(Assorted(0));
  ASSERT_NE(bytes_of(Assorted(1)), expected);
  run_ranks({2, 1}, [&](const GroupPtr& group) {
    DistributedDataParallel model(std::make_shared<Assorted>(group->rank()), group);
    EXPECT_EQ(bytes_of(model.module()), expected);
  });
}

TEST_P(AllLayouts, AndTypesOfParametersAreReduced) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(std::make_shared<Assorted>(group->rank()), group,
                                  GetParam().options);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      (model() * (1 + group->rank())).backward();
      for (const auto& item : model.module().named_parameters()) {
        EXPECT_TRUE(torch::equal(item.value().grad(), torch::full_like(item.value(), 9)))
            << item.key() << item.value().grad();
      }
    }
  });
}

// Verification: rank 1 of three differs.
void expect_difference(const std::function<void(Mlp&)>& change, const std::string& zero_has,
                       const std::string& one_has) {
  std::atomic<int> errors = 0;
  run_ranks({3}, [&](const GroupPtr& group) {
    auto module = make_mlp(7);
    module->register_buffer("seen", torch::zeros({2}));
    if (group->rank() == 1) change(*module);
    try {
      DistributedDataParallel model(module, group);
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 has '" + zero_has));
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has '" + one_has));
      ++errors;
    }
    group->barrier()->wait();  // The group is as good as before.
  });
  EXPECT_EQ(errors, 3);
}

TEST(Verification, NamesTheFirstDifferenceAndBothRanks) {
  expect_difference(
      [](Mlp& m) {
        m.layers[0]->weight.set_data(torch::zeros({6, 5}));
      },
      "parameter layer0.weight float32 [5, 6]'", "parameter layer0.weight float32 [6, 5]'");
  expect_difference([](Mlp& m) { m.layers[1]->bias.set_data(torch::zeros({4}, torch::kDouble)); },
                    "parameter layer1.bias float32 [4]'", "parameter layer1.bias float64 [4]'");
  expect_difference([](Mlp& m) { m.layers[1]->bias.requires_grad_(false); },
                    "parameter layer1.bias float32 [4]'",
                    "parameter layer1.bias float32 [4] without gradient'");
  expect_difference(
      [](Mlp& m) {
        m.layers[0]->weight.set_data(torch::zeros({6, 5}).t());
      },
      "parameter layer0.weight float32 [5, 6]'",
      "parameter layer0.weight float32 [5, 6] strides [1, 5]'");
  expect_difference([](Mlp& m) { m.register_parameter("extra", torch::zeros({1})); },
                    "parameter layer0.weight float32 [5, 6]'", "parameter extra float32 [1]'");
  expect_difference([](Mlp& m) { m.register_buffer("more", torch::zeros({1})); }, "nothing more'",
                    "buffer more float32 [1]'");
  expect_difference([](Mlp& m) { m.register_parameter("same", m.layers[0]->bias); },
                    "parameter layer0.weight float32 [5, 6]'",
                    "parameter same float32 [5] shared as layer0.bias'");
}

TEST(Verification, RefusesWhatItCannotTrainAndBadOptions) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto build = [&](const std::function<void(Mlp&)>& change,
                           const DistributedDataParallelOptions& options = {}) {
      auto module = make_mlp(7);
      change(*module);
      return error_of([&] { DistributedDataParallel model(module, group, options); });
    };
    EXPECT_THAT(build([](Mlp& m) {
                  for (auto& parameter : m.parameters()) parameter.requires_grad_(false);
                }),
                HasSubstr("no parameter that requires a gradient"));
    EXPECT_THAT(build([](Mlp& m) { m.to(torch::kComplexFloat); }),
                HasSubstr("layer0.weight is complex64; collectives have uint8"));
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 0;
    EXPECT_THAT(build([](Mlp&) {}, options), HasSubstr("bucket_cap_mb is 0"));
    EXPECT_THAT(
        error_of([&] { DistributedDataParallel<Mlp> model(std::shared_ptr<Mlp>(), group); }),
        HasSubstr("no module"));
  });
}

TEST(DataParallel, WithoutInitSyncNothingIsExchangedAtConstruction) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.init_sync = false;
    if (group->rank() == 1) return;
    auto module = make_mlp(7);
    DistributedDataParallel model(module, group, options);  // Would wait for rank 1 otherwise.
  });
}

}  // namespace
}  // namespace ddp::test
