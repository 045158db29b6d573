#include "worker/ddp/hooks/model_averager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch/hooks/hook_training.h"
#include "worker/ddp/hooks/hierarchical_model_averager.h"
#include "worker/ddp/hooks/post_local_sgd_hook.h"
#include "worker/ddp/hooks/post_local_sgd_optimizer.h"
#include "worker/ddp/hooks/subgroups.h"

// Model averaging in words: when, over whom, and what is refused. In numbers:
// hooks_transcript_test.
namespace ddp {
namespace {

using test::GroupPtr;
using test::run_ranks;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A parameter that is the rank's number, with a gradient.
at::Tensor parameter_of(Rank rank) {
  at::Tensor parameter = torch::full({3}, static_cast<float>(rank)).requires_grad_();
  parameter.mutable_grad() = torch::zeros({3});
  return parameter;
}

void set(const at::Tensor& parameter, float value) {
  const torch::NoGradGuard no_grad;
  parameter.fill_(value);
}

// What the parameter of this rank is after each of some steps, if it was the rank's number before.
std::vector<float> averages(ModelAverager& averager, Rank rank, int steps) {
  const at::Tensor parameter = parameter_of(rank);
  std::vector<float> values;
  for (int step = 0; step < steps; ++step) {
    set(parameter, static_cast<float>(rank));
    averager.average_parameters({parameter});
    values.push_back(parameter[0].item<float>());
  }
  return values;
}

TEST(ModelAveragerTest, PeriodicAveragesFromTheWarmUpOnInItsRhythm) {
  run_ranks({2}, [](const GroupPtr& group) {
    PeriodicModelAverager averager(3, 2, group);
    const auto own = static_cast<float>(group->rank());
    EXPECT_THAT(averages(averager, group->rank(), 9),
                ElementsAre(own, own, 0.5F, own, own, 0.5F, own, own, 0.5F));
    EXPECT_EQ(averager.step(), 9);
    std::vector<bool> in_agreement;
    for (int step = 0; step <= 9; ++step) {
      PeriodicModelAverager resumed(3, 2, group);
      resumed.load_state({{"step", step}});
      in_agreement.push_back(resumed.in_agreement());
    }
    EXPECT_THAT(in_agreement,
                ElementsAre(true, true, true, true, false, false, true, false, false, true));
  });
}

TEST(ModelAveragerTest, HierarchicalTakesTheLargestPeriodThatDivides) {
  run_ranks({4}, [](const GroupPtr& group) {
    HierarchicalModelAverager averager({{2, 2}, {6, 4}}, 1, group);
    const auto own = static_cast<float>(group->rank());
    const float pair = group->rank() < 2 ? 0.5F : 2.5F;
    EXPECT_THAT(averages(averager, group->rank(), 8),
                ElementsAre(own, own, pair, own, pair, own, 1.5F, own));
  });
}

TEST(ModelAveragerTest, ParametersWithoutGradientAndOfOtherTypesAreTreatedByThemselves) {
  run_ranks({2}, [](const GroupPtr& group) {
    PeriodicModelAverager averager(2, 0, group);
    const at::Tensor with = parameter_of(group->rank());
    const at::Tensor without = torch::full({2}, static_cast<float>(group->rank())).requires_grad_();
    at::Tensor other = torch::full({2, 2}, static_cast<double>(group->rank()), torch::kDouble);
    other.requires_grad_();
    other.mutable_grad() = torch::zeros({2, 2}, torch::kDouble);
    averager.average_parameters({with, without, other});
    EXPECT_EQ(with[2].item<float>(), 0.5F);
    EXPECT_EQ(other[1][1].item<double>(), 0.5);
    EXPECT_EQ(without[0].item<float>(), static_cast<float>(group->rank()));
  });
}

TEST(ModelAveragerTest, StateKeepsTheRhythm) {
  run_ranks({2}, [](const GroupPtr& group) {
    PeriodicModelAverager first(3, 2, group);
    averages(first, group->rank(), 4);
    PeriodicModelAverager second(3, 2, group);
    second.load_state(first.state());
    EXPECT_EQ(averages(second, group->rank(), 3), averages(first, group->rank(), 3));
    for (const auto& bad : {nlohmann::json(), nlohmann::json{{"step", -1}},
                            nlohmann::json{{"step", "1"}}, nlohmann::json{{"steps", 1}}}) {
      EXPECT_THROW(second.load_state(bad), std::invalid_argument) << bad;
    }
    EXPECT_EQ(second.step(), 7);
  });
}

TEST(ModelAveragerTest, OptimizerStepsThenAverages) {
  run_ranks({2}, [](const GroupPtr& group) {
    const at::Tensor parameter = parameter_of(group->rank());
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1));
    PostLocalSGDOptimizer optimizer(sgd, std::make_shared<PeriodicModelAverager>(2, 1, group));
    const auto step = [&] {
      parameter.mutable_grad() = torch::full({3}, static_cast<float>(group->rank()));
      optimizer.step();
      return parameter[0].item<float>();
    };
    EXPECT_EQ(step(), 0.0F);   // 0 - 0 and 1 - 1.
    EXPECT_EQ(step(), -0.5F);  // 0 - 0 and 0 - 1, averaged.
    optimizer.zero_grad();
    EXPECT_FALSE(parameter.grad().defined());
    EXPECT_EQ(optimizer.averager().step(), 2);
  });
}

TEST(ModelAveragerTest, HookAveragesOverAllThenOverTheSubgroup) {
  run_ranks({4}, [](const GroupPtr& group) {
    const auto state = std::make_shared<PostLocalSGDState>(group, new_subgroups(*group, 2), 2);
    const auto hook = make_comm_hook(state, post_localSGD_hook);
    auto buckets = test::make_buckets({{"a", torch::zeros({2})}, {"b", torch::zeros({2})}},
                                      {"a", "b"}, {1, 1}, *group);
    HookRunner runner;
    for (int step = 0; step < 4; ++step) {
      for (GradBucket& bucket : buckets) bucket.buffer().fill_(group->rank());
      test::run_hook(runner, *hook, buckets);
      const float pair = group->rank() < 2 ? 0.5F : 2.5F;
      for (GradBucket& bucket : buckets) {
        EXPECT_EQ(bucket.buffer()[0].item<float>(), step < 2 ? 1.5F : pair);
      }
    }
    EXPECT_EQ(state->iter(), 2);
  });
}

TEST(ModelAveragerTest, NodesAreTheStandardSubgroups) {
  run_ranks({2}, [](const GroupPtr& group) {
    EXPECT_EQ(PostLocalSGDState(group, nullptr, 0).subgroup().size(), 2);
  });
}

TEST(ModelAveragerTest, WhatMakesNoSenseIsRefused) {
  run_ranks({4}, [](const GroupPtr& group) {
    EXPECT_THROW(PeriodicModelAverager(0, 0, group), std::invalid_argument);
    EXPECT_THROW(PeriodicModelAverager(2, -1, group), std::invalid_argument);
    EXPECT_THROW(PeriodicModelAverager(2, 0, nullptr), std::invalid_argument);
    EXPECT_THROW(PostLocalSGDState(group, group, -1), std::invalid_argument);
    EXPECT_THROW(new_subgroups(*group, 3), std::invalid_argument);
    const auto error_of = [&group](std::vector<std::pair<std::int64_t, int>> pairs) -> std::string {
      try {
        HierarchicalModelAverager averager(std::move(pairs), 0, group);
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "accepted";
    };
    EXPECT_THAT(error_of({}), HasSubstr("must not be empty"));
    EXPECT_THAT(error_of({{0, 4}}), HasSubstr("at least 1 and ascend; 0 follows 0"));
    EXPECT_THAT(error_of({{4, 2}, {2, 4}}), HasSubstr("2 follows 4"));
    EXPECT_THAT(error_of({{2, 2}, {4, 2}}), HasSubstr("that of the group, 4, not 2"));
    EXPECT_THAT(error_of({{2, 3}, {4, 4}}), HasSubstr("groups of 3"));
    EXPECT_EQ(error_of({{2, 2}, {4, 4}}), "accepted");
  });
}

}  // namespace
}  // namespace ddp
