// The reducer's side of communication hooks: when they run, on what, and how their results are
// used.
#include <cstddef>
#include <memory>
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
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

// The average, by two stages.
Future average_hook(ProcessGroup& group, GradBucket& bucket) {
  WorkPtr work = group.all_reduce(buffer_of(bucket.buffer()), ReduceOp::kSum, {{}, "hook"});
  return Future(std::move(work), bucket.buffer()).then([&group](at::Tensor sum) {
    return sum.mul_(1.0 / group.size());
  });
}

// What a hook saw.
struct Seen {
  std::vector<std::size_t> indices;
  std::vector<bool> is_last;
  std::vector<std::vector<std::string>> names;
};

DistributedDataParallelOptions tiny_buckets() {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = 1e-5;
  return options;
}

class HookModes : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, HookModes, testing::ValuesIn(modes()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(HookModes, AHookThatAveragesGivesTheAverageToTheBit) {
  for (const std::vector<int>& nodes : {std::vector<int>{1}, {2}, {2, 1}}) {
    run_ranks(nodes, [&](const GroupPtr& group) {
      DistributedDataParallel model(make_mlp(7), group, GetParam().options);
      model.register_comm_hook(group, average_hook);
      for (int step = 0; step < 3; ++step) {
        model.zero_grad(/*set_to_none=*/step != 1);
        loss_of(model(input_of(group->rank(), step))).backward();
        expect_average_gradients(model.module(), group->size(), {step});
      }
    });
  }
}

TEST_P(HookModes, WithAHookNothingIsDividedAndItsTensorMayBeAnotherOne) {
  for (const int world : {1, 2}) {
    run_ranks({world}, [&](const GroupPtr& group) {
      DistributedDataParallel model(make_mlp(7), group, GetParam().options);
      model.register_comm_hook(std::make_shared<int>(3), [](int& factor, GradBucket& bucket) {
        return Future(bucket.buffer() * factor);
      });
      loss_of(model(input_of(group->rank()))).backward();
      auto local = local_gradients(group->rank());
      for (const auto& [name, gradient] : gradients_of(model.module())) {
        EXPECT_TRUE(same_bytes(gradient, local.at(name) * 3)) << name;
      }
    });
  }
}

TEST_P(HookModes, AResultOfAnotherTypeIsConverted) {
  run_ranks({2}, [&](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group, GetParam().options);
    model.register_comm_hook(std::make_shared<int>(0), [](int&, GradBucket& bucket) {
      bucket.set_buffer(bucket.buffer().to(torch::kBFloat16));
      return Future(bucket.buffer());
    });
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      loss_of(model(input_of(group->rank(), step))).backward();
      auto local = local_gradients(group->rank(), {step});
      for (const auto& [name, gradient] : gradients_of(model.module())) {
        EXPECT_TRUE(same_bytes(gradient, local.at(name).to(torch::kBFloat16).to(torch::kFloat)))
            << name;
      }
    }
  });
}

TEST(CommHook, SeesBucketsInTheOrderOfTheirIndicesWithWhatIsInThem) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group, tiny_buckets());
    const auto seen = std::make_shared<Seen>();
    const auto local = local_gradients(group->rank());
    model.register_comm_hook(seen, [&](Seen& to, GradBucket& bucket) {
      to.indices.push_back(bucket.index());
      to.is_last.push_back(bucket.is_last());
      to.names.push_back(bucket.names());
      EXPECT_EQ(bucket.gradients().size(), bucket.names().size());
      for (std::size_t i = 0; i < bucket.names().size(); ++i) {
        const std::string& name = bucket.names()[i];
        EXPECT_TRUE(same_bytes(bucket.gradients()[i], local.at(name))) << name;
        EXPECT_TRUE(bucket.gradients()[i].is_alias_of(bucket.buffer()));
        EXPECT_TRUE(bucket.parameters()[i].is_same(model.module().named_parameters()[name]));
      }
      return average_hook(*group, bucket);
    });
    loss_of(model(input_of(group->rank()))).backward();
    EXPECT_EQ(seen->indices, (std::vector<std::size_t>{0, 1, 2, 3}));
    EXPECT_EQ(seen->is_last, (std::vector<bool>{false, false, false, true}));
    EXPECT_EQ(
        seen->names,
        (BucketNames{{"layer1.bias"}, {"layer1.weight"}, {"layer0.bias"}, {"layer0.weight"}}));
  });
}

TEST(CommHook, IsRegisteredOnceBeforeOrBetweenBackwards) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group, tiny_buckets());
    loss_of(model(input_of(group->rank()))).backward();
    model.register_comm_hook(group, average_hook);
    EXPECT_THAT(error_of([&] { model.register_comm_hook(group, average_hook); }),
                HasSubstr("can only be called once"));
    model.zero_grad();
    loss_of(model(input_of(group->rank(), 1))).backward();
    expect_average_gradients(model.module(), 2, {1});
    EXPECT_THAT(error_of([&] { model.register_comm_hook(nullptr); }), HasSubstr("no hook"));
  });
}

// What each rank sees if `hook` fails on rank 1.
template <typename Function>
void expect_failure(Function hook, const std::string& text) {
  run_ranks({3}, [&](const GroupPtr& group) {
    try {
      DistributedDataParallel model(make_mlp(7), group, tiny_buckets());
      model.register_comm_hook(group, hook);
      loss_of(model(input_of(group->rank()))).backward();
      ADD_FAILURE() << "no error";
    } catch (const CollectiveError& error) {
      EXPECT_NE(group->rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 aborted the group"));
      EXPECT_THAT(error.what(), HasSubstr(text));
    } catch (const std::exception& error) {
      EXPECT_EQ(group->rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  });
}

TEST(CommHook, AnExceptionEndsTheGroupAndNamesHookAndBucket) {
  expect_failure(
      [](ProcessGroup& group, GradBucket& bucket) {
        if (group.rank() == 1 && bucket.index() == 2) throw std::domain_error("no hook today");
        return average_hook(group, bucket);
      },
      "communication hook user, bucket 2 of 4 (layer0.bias): no hook today");
}

TEST(CommHook, SoDoesOneInAContinuation) {
  expect_failure(
      [](ProcessGroup& group, GradBucket& bucket) {
        return average_hook(group, bucket).then([&group, &bucket](at::Tensor value) {
          if (group.rank() == 1 && bucket.index() == 1) throw std::domain_error("not later");
          return value;
        });
      },
      "communication hook user, bucket 1 of 4 (layer1.weight): not later");
}

TEST(CommHook, AResultThatIsNoGradientOfTheBucketIsRefused) {
  expect_failure(
      [](ProcessGroup& group, GradBucket& bucket) {
        if (group.rank() != 1) return average_hook(group, bucket);
        return average_hook(group, bucket).then([](const at::Tensor& value) {
          return at::cat({value, value});
        });
      },
      "it must have 4 elements");
}

TEST(CommHook, InAGroupOfOneUnusedParametersAreStillFound) {
  run_ranks({1}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    module->register_parameter("idle", torch::zeros({2}));
    DistributedDataParallelOptions options;
    for (const bool find : {false, true}) {
      options.find_unused_parameters = find;
      DistributedDataParallel model(module, group, options);
      model.register_comm_hook(group, average_hook);
      model.zero_grad();
      const std::string error =
          error_of([&] { loss_of(model(input_of(group->rank()))).backward(); });
      EXPECT_THAT(error, HasSubstr(find ? "no error" : "1 of 5 parameters got no gradient"));
      EXPECT_FALSE(module->named_parameters()["idle"].grad().defined());
    }
  });
}

}  // namespace
}  // namespace ddp::test
