// Buckets in the order of arrival: rebuilt once, alike on all ranks, without effect on the results.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/recording_group.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/averaging/reducer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// Three branches whose gradients come in the reverse order of their use, which is an argument.
struct Branches : torch::nn::Module {
  Branches() {
    for (const char* name : {"a", "b", "c"}) {
      branches.push_back(register_parameter(name, torch::zeros({6, 3})));
    }
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x, const std::vector<std::size_t>& order) {
    at::Tensor sum = torch::zeros({});
    for (const std::size_t branch : order) sum = sum + x.matmul(branches[branch]).square().mean();
    return sum;
  }
  std::vector<at::Tensor> branches;
};

DistributedDataParallelOptions one_parameter_a_bucket() {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = 1e-5;
  return options;
}

TEST(RebuiltBuckets, AreInRankZerosOrderOnAllRanksAfterTheFirstBackward) {
  for (const bool find_unused : {false, true}) {
    run_ranks({3}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options = one_parameter_a_bucket();
      options.find_unused_parameters = find_unused;
      DistributedDataParallel model(std::make_shared<Branches>(), group, options);
      EXPECT_EQ(model.bucket_layout(), (BucketNames{{"c"}, {"b"}, {"a"}}));
      {
        const auto guard = model.no_sync();
        model(input_of(0), std::vector<std::size_t>{0, 1, 2}).backward();
      }
      EXPECT_FALSE(model.reducer().has_rebuilt_buckets());
      const std::vector<std::size_t> order = group->rank() == 0 ? std::vector<std::size_t>{2, 0, 1}
                                                                : std::vector<std::size_t>{0, 2, 1};
      model(input_of(0), order).backward();
      EXPECT_TRUE(model.reducer().has_rebuilt_buckets());
      EXPECT_EQ(model.bucket_layout(), (BucketNames{{"b"}, {"a"}, {"c"}}));
      model(input_of(0), std::vector<std::size_t>{2, 1, 0}).backward();
      EXPECT_EQ(model.bucket_layout(), (BucketNames{{"b"}, {"a"}, {"c"}}));  // Once.
    });
  }
}

TEST(RebuiltBuckets, UnusedParametersComeLast) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options = one_parameter_a_bucket();
    options.find_unused_parameters = true;
    DistributedDataParallel model(std::make_shared<Branches>(), group, options);
    model(input_of(0), std::vector<std::size_t>{0}).backward();
    EXPECT_EQ(model.bucket_layout(), (BucketNames{{"a"}, {"c"}, {"b"}}));
  });
}

class RebuiltModes : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, RebuiltModes, testing::ValuesIn(modes()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(RebuiltModes, LeaveNoTraceInTheResults) {
  std::vector<std::string> results;
  for (const bool rebuild : {false, true}) {
    std::vector<std::string> of_rank(3);
    run_ranks({3}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options = GetParam().options;
      options.bucket_cap_mb = 1e-4;  // Two parameters.
      options.rebuild_buckets = rebuild;
      DistributedDataParallel model(std::make_shared<Branches>(), group, options);
      torch::optim::SGD optimizer(model.module().parameters(),
                                  torch::optim::SGDOptions(0.1).momentum(0.9));
      const BucketNames first = model.bucket_layout();
      for (int step = 0; step < 5; ++step) {
        model.zero_grad(/*set_to_none=*/step % 2 == 0);
        model(input_of(group->rank(), step), std::vector<std::size_t>{1, 2, 0}).backward();
        optimizer.step();
      }
      EXPECT_EQ(model.bucket_layout() != first, rebuild);
      of_rank[static_cast<std::size_t>(group->rank())] = bytes_of(model.module());
    });
    EXPECT_EQ(of_rank[0], of_rank[1]);
    EXPECT_EQ(of_rank[0], of_rank[2]);
    results.push_back(of_rank[0]);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(RebuiltBuckets, GradientsThatAreViewsMoveWithTheirValuesAndStayTheSameTensors) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    DistributedDataParallel model(std::make_shared<Branches>(), recording, options);
    auto& branches = model.module().branches;
    {
      const auto guard = model.no_sync();
      model(input_of(group->rank()), std::vector<std::size_t>{1, 2, 0}).backward();
    }
    const at::Tensor held = branches[1].grad();
    model.zero_grad(/*set_to_none=*/false);
    model(input_of(group->rank()), std::vector<std::size_t>{1, 2, 0}).backward();
    EXPECT_TRUE(held.is_same(branches[1].grad()) || !held.is_alias_of(branches[1].grad()));
    // After the one bucket was rebuilt: a, c, b lie in it in this order.
    const auto* begin = static_cast<const float*>(branches[0].grad().data_ptr());
    EXPECT_EQ(branches[2].grad().data_ptr(), begin + 18);
    EXPECT_EQ(branches[1].grad().data_ptr(), begin + 36);
    EXPECT_TRUE(recording->gave(begin, 3 * 18 * sizeof(float)));
    const at::Tensor kept = branches[0].grad();
    const at::Tensor copy = kept.clone();
    EXPECT_GT(copy.abs().max().item<float>(), 0);
    model(input_of(group->rank()), std::vector<std::size_t>{1, 2, 0}).backward();
    EXPECT_TRUE(kept.is_same(branches[0].grad()));
    EXPECT_FALSE(same_bytes(kept, copy));
  });
}

TEST(BucketLayoutOption, IsUsedFromTheFirstStepAndForGood) {
  const BucketNames layout = {{"b"}, {"a", "c"}};
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.bucket_layout = layout;
    DistributedDataParallel model(std::make_shared<Branches>(), group, options);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(model.bucket_layout(), layout);
      model(input_of(0), std::vector<std::size_t>{0, 1, 2}).backward();
    }
  });
}

TEST(BucketLayoutOption, WhatDoesNotFitIsNamed) {
  run_ranks({1}, [](const GroupPtr& group) {
    const auto error = [&](const BucketNames& layout) {
      DistributedDataParallelOptions options;
      options.bucket_layout = layout;
      auto module = std::make_shared<Branches>();
      module->register_parameter("d", torch::zeros({2}, torch::kDouble));
      return error_of([&] { DistributedDataParallel model(module, group, options); });
    };
    EXPECT_EQ(error({{"b"}, {"a", "c"}, {"d"}}), "no error");
    EXPECT_THAT(error({{"b"}, {"a", "c"}}), HasSubstr("parameter d is in no bucket"));
    EXPECT_THAT(error({{"b"}, {"a", "b", "c"}, {"d"}}),
                HasSubstr("parameter b in bucket 1 is in a bucket already"));
    EXPECT_THAT(error({{"b", "d"}, {"a", "c"}}), HasSubstr("d in bucket 0 is of another type"));
    EXPECT_THAT(error({{"x"}}), HasSubstr("no trainable parameter 'x'"));
    EXPECT_THAT(error({{"b"}, {}, {"a", "c"}, {"d"}}), HasSubstr("bucket 1 is empty"));
  });
}

TEST(BucketCaps, AListHasOneForEachBucket) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    const double one = 72.0 / 1024 / 1024;  // MiB of a parameter.
    options.bucket_cap_mb_list = {2 * one, one};
    DistributedDataParallel model(std::make_shared<Branches>(), group, options);
    EXPECT_EQ(model.bucket_layout(), (BucketNames{{"c", "b"}, {"a"}}));
    options.bucket_cap_mb_list = {one, -1};
    EXPECT_THAT(error_of([&] {
                  DistributedDataParallel bad(std::make_shared<Branches>(), group, options);
                }),
                HasSubstr("bucket_cap_mb_list is -1"));
  });
}

TEST(Options, ThatDifferAreNamedWithTheirRanks) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.find_unused_parameters = group->rank() == 1;
    EXPECT_THAT(error_of([&] {
                  DistributedDataParallel model(std::make_shared<Branches>(), group, options);
                }),
                HasSubstr("rank 0 has 'option find_unused_parameters false', rank 1 has 'option "
                          "find_unused_parameters true'"));
  });
}

}  // namespace
}  // namespace ddp::test
