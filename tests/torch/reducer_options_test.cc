// Options of DistributedDataParallel that change what is reduced, or when.
#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "tests/torch/recording_group.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Runs a layer again in backward, as checkpointing does: a backward inside another.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::int64_t layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = layer;
    return (*reinterpret_cast<torch::nn::Linear*>(layer))(x);  // NOLINT
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    auto* layer =
        reinterpret_cast<torch::nn::Linear*>(context->saved_data["layer"].toInt());  // NOLINT
    (*layer)(x).backward(gradients[0]);
    return {x.grad(), {}};
  }
};

struct Checkpointed : torch::nn::Module {
  explicit Checkpointed(bool checkpoints) : uses_checkpoints(checkpoints) {
    first = register_module("first", torch::nn::Linear(6, 6));
    second = register_module("second", torch::nn::Linear(6, 6));
    idle = register_parameter("idle", torch::zeros({3}));
    fill(*this, 7);
  }
  at::Tensor run(torch::nn::Linear& layer, const at::Tensor& x) {
    if (!uses_checkpoints) return layer(x);
    return Checkpoint::apply(x, reinterpret_cast<std::int64_t>(&layer));  // NOLINT
  }
  // The first layer twice.
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = torch::tanh(run(first, x.detach().requires_grad_()));
    h = torch::tanh(run(second, h));
    return run(first, h);
  }
  bool uses_checkpoints;
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor idle;
};

TEST(StaticGraph, TakesBackwardsInsideBackwardAndParametersThatArriveTwice) {
  for (const bool views : {false, true}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      auto recording = std::make_shared<RecordingGroup>(group);
      DistributedDataParallelOptions options;
      options.static_graph = true;
      options.gradient_as_bucket_view = views;
      options.bucket_cap_mb = 1e-5;
      auto module = std::make_shared<Checkpointed>(true);
      DistributedDataParallel model(module, recording, options);
      for (int step = 0; step < 3; ++step) {
        model.zero_grad();
        recording->take();
        loss_of(model(input_of(group->rank(), step))).backward();
        const auto tags = recording->take();
        EXPECT_EQ(std::count(tags.begin(), tags.end(), "flags of used parameters"),
                  step == 0 ? 1 : 0);
        for (const char* name : {"first.weight", "first.bias", "second.weight"}) {
          std::vector<at::Tensor> terms;
          for (int rank = 0; rank < 2; ++rank) {
            Checkpointed reference(true);
            loss_of(reference.forward(input_of(rank, step))).backward();
            terms.push_back(reference.named_parameters()[name].grad());
          }
          EXPECT_TRUE(same_bytes(module->named_parameters()[name].grad(), average(terms)))
              << name << " in step " << step;
        }
        EXPECT_FALSE(module->idle.grad().defined());
      }
      EXPECT_EQ(model.stats().unused_parameters, std::vector<std::string>{"idle"});
    });
  }
}

TEST(StaticGraph, WithoutItABackwardInsideAnotherIsRefusedInWords) {
  run_ranks({1}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    DistributedDataParallel model(std::make_shared<Checkpointed>(true), group, options);
    // Timed iterations begin the backward at the outputs, which must make no difference.
    model.set_runtime_logging_sample_rate(1);
    EXPECT_THAT(error_of([&] { loss_of(model(input_of(0))).backward(); }),
                HasSubstr("needs static_graph"));
  });
}

// Uses its second weight if told to, and its first one as often as told.
struct Changing : torch::nn::Module {
  Changing() {
    a = register_parameter("a", torch::ones({4}));
    b = register_parameter("b", torch::ones({4}));
  }
  at::Tensor forward(bool use_b) { return use_b ? (a * b).sum() : a.sum(); }
  at::Tensor a;
  at::Tensor b;
};

TEST(StaticGraph, AChangeIsAnErrorThatNamesTheParameter) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.static_graph = true;
    try {
      DistributedDataParallel model(std::make_shared<Changing>(), group, options);
      model(true).backward();
      model(group->rank() != 1).backward();
      ADD_FAILURE() << "no error";
    } catch (const CollectiveError& error) {
      EXPECT_EQ(group->rank(), 0);
      EXPECT_THAT(error.what(), HasSubstr("b (0 instead of 1)"));
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(group->rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("static_graph: 1 of 2 parameters"));
    }
  });
  run_ranks({1}, [&](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.static_graph = true;
    DistributedDataParallel model(std::make_shared<Changing>(), group, options);
    model(false).backward();
    EXPECT_THAT(error_of([&] { model(true).backward(); }), HasSubstr("parameter b got gradient "
                                                                     "number 1"));
  });
}

TEST(StaticGraph, GradientsThatAreOnlyAskedForReduceNothing) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    DistributedDataParallelOptions options;
    options.static_graph = true;
    DistributedDataParallel model(std::make_shared<Changing>(), recording, options);
    recording->take();
    const at::Tensor loss = model(true);
    torch::autograd::grad({loss}, {model.module().a}, {}, /*retain_graph=*/true);
    EXPECT_TRUE(recording->take().empty());
    loss.backward();
    EXPECT_TRUE(torch::equal(model.module().a.grad(), torch::ones({4})));
  });
}

TEST(SkipUnused, BucketsThatNobodyUsedAreNotSent) {
  for (const bool views : {false, true}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      auto recording = std::make_shared<RecordingGroup>(group);
      DistributedDataParallelOptions options;
      options.find_unused_parameters = true;
      options.skip_all_reduce_unused_params = true;
      options.gradient_as_bucket_view = views;
      options.bucket_cap_mb = 1e-5;
      options.rebuild_buckets = false;
      DistributedDataParallel model(std::make_shared<Changing>(), recording, options);
      recording->take();
      (model(false) * (1 + group->rank())).backward();
      EXPECT_THAT(recording->take(), ElementsAre("bucket 1 of 2 (a)", "flags of used parameters"));
      EXPECT_TRUE(torch::equal(model.module().a.grad(), torch::full({4}, 1.5)));
      EXPECT_FALSE(model.module().b.grad().defined());
      (model(true) * (1 + group->rank())).backward();
      EXPECT_EQ(recording->take().size(), 3U);
      EXPECT_TRUE(torch::equal(model.module().b.grad(), torch::full({4}, 1.5)));
      model(false).backward();  // What was there stays.
      EXPECT_TRUE(torch::equal(model.module().b.grad(), torch::full({4}, 1.5)));
    });
  }
}

TEST(SkipUnused, RanksThatUseOtherParametersFailTogether) {
  run_ranks({2}, [](const GroupPtr& group) {
    for (const double cap : {25.0}) {
      const std::string error = error_of([&] {
        DistributedDataParallelOptions options;
        options.find_unused_parameters = true;
        options.skip_all_reduce_unused_params = true;
        options.bucket_cap_mb = cap;
        auto module = std::make_shared<Changing>();
        module->register_parameter("idle", torch::zeros({4}, torch::kDouble));
        module->register_parameter("other", torch::zeros({4}, torch::kDouble));
        DistributedDataParallel model(module, group, options);
        at::Tensor loss = model(true);
        if (group->rank() == 1) loss = loss + module->named_parameters()["other"].sum();
        loss.backward();
      });
      EXPECT_THAT(error, testing::AnyOf(HasSubstr("bucket"), HasSubstr("other")));
    }
  });
}

TEST(SkipUnused, NeedsAWayToKnow) {
  run_ranks({1}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.skip_all_reduce_unused_params = true;
    EXPECT_THAT(error_of([&] {
                  DistributedDataParallel model(std::make_shared<Changing>(), group, options);
                }),
                HasSubstr("needs find_unused_parameters or static_graph"));
  });
}

// What happens to a gradient between its arrival and that of the last one of its bucket is part of
// what is averaged if copies wait for the last one, and else is not.
TEST(BatchedGradCopy, CopiesWhenTheBucketIsFull) {
  for (const bool views : {false, true}) {
    for (const bool batched : {false, true}) {
      run_ranks({2}, [&](const GroupPtr& group) {
        DistributedDataParallelOptions options;
        options.gradient_as_bucket_view = views;
        options.batched_grad_copy = batched;
        DistributedDataParallel model(make_mlp(7), group, options);
        const auto& layers = model.module().layers;
        at::Tensor last = layers.back()->weight;
        layers.front()->weight.register_hook([last](const at::Tensor& gradient) {
          const torch::NoGradGuard no_grad;
          // Not in place, where a view of the bucket would see it.
          last.mutable_grad() = last.grad() * 3;
          return gradient;
        });
        for (int step = 0; step < 3; ++step) {
          model.zero_grad();
          loss_of(model(input_of(group->rank(), step))).backward();
          const std::string name = "layer1.weight";
          const at::Tensor plain =
              average({local_gradients(0, {step}).at(name), local_gradients(1, {step}).at(name)});
          EXPECT_TRUE(torch::allclose(last.grad(), batched ? plain * 3 : plain)) << step;
        }
      });
    }
  }
}

TEST(IgnoredParameters, StayWhatTheyAreOnEveryRank) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7 + static_cast<std::uint64_t>(group->rank()));
    module->register_buffer("mine", torch::full({2}, group->rank()));
    DistributedDataParallelOptions options;
    options.parameters_to_ignore = {"layer0.weight", "mine"};
    const at::Tensor own = module->layers[0]->weight.detach().clone();
    DistributedDataParallel model(module, group, options);
    EXPECT_TRUE(same_bytes(module->layers[0]->weight, own));
    EXPECT_TRUE(same_bytes(module->layers[1]->weight, make_mlp(7)->layers[1]->weight));
    EXPECT_EQ(module->named_buffers()["mine"][0].item<int>(), group->rank());
    EXPECT_EQ(model.bucket_layout(),
              (BucketNames{{"layer1.bias", "layer1.weight", "layer0.bias"}}));
    auto reference = make_mlp(7);
    {
      const torch::NoGradGuard no_grad;
      reference->layers[0]->weight.copy_(own);
    }
    loss_of(reference->forward(input_of(group->rank()))).backward();
    loss_of(model(input_of(group->rank()))).backward();
    EXPECT_TRUE(same_bytes(module->layers[0]->weight.grad(), reference->layers[0]->weight.grad()));
    EXPECT_FALSE(same_bytes(module->layers[1]->bias.grad(), reference->layers[1]->bias.grad()));
    options.parameters_to_ignore = {"layer7.weight"};
    EXPECT_THAT(error_of([&] { DistributedDataParallel bad(module, group, options); }),
                HasSubstr("no parameter or buffer 'layer7.weight'"));
  });
}

TEST(DelayedParameters, AreReducedTogetherBehindTheOneTheyWaitFor) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    DistributedDataParallelOptions options;
    options.bucket_cap_mb = 1e-5;
    options.delay_all_reduce_named_params = {"layer1.weight", "layer1.bias"};
    options.param_to_hook_all_reduce = "layer0.bias";
    DistributedDataParallel model(make_mlp(7), recording, options);
    for (int step = 0; step < 2; ++step) {
      model.zero_grad();
      recording->take();
      loss_of(model(input_of(group->rank(), step))).backward();
      expect_average_gradients(model.module(), 2, {step});
      EXPECT_EQ(
          model.bucket_layout(),
          (BucketNames{{"layer0.bias"}, {"layer1.bias", "layer1.weight"}, {"layer0.weight"}}));
    }
    options.param_to_hook_all_reduce = "layer9.bias";
    EXPECT_THAT(error_of([&] { DistributedDataParallel bad(make_mlp(7), group, options); }),
                HasSubstr("param_to_hook_all_reduce: there is no trainable parameter"));
    options.param_to_hook_all_reduce = "";
    EXPECT_THAT(error_of([&] { DistributedDataParallel bad(make_mlp(7), group, options); }),
                HasSubstr("are given together"));
  });
}

TEST(DelayedParameters, DoNotGoThroughAHook) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.delay_all_reduce_named_params = {"layer1.bias"};
    options.param_to_hook_all_reduce = "layer0.weight";
    DistributedDataParallel model(make_mlp(7), group, options);
    model.register_comm_hook(std::make_shared<int>(0), [](int&, GradBucket& bucket) {
      EXPECT_EQ(bucket.names().size(), 3U);
      EXPECT_TRUE(bucket.is_last());
      return Future(bucket.buffer().zero_());
    });
    loss_of(model(input_of(group->rank()))).backward();
    std::vector<at::Tensor> terms;
    for (int rank = 0; rank < 2; ++rank) terms.push_back(local_gradients(rank).at("layer1.bias"));
    EXPECT_TRUE(same_bytes(model.module().layers[1]->bias.grad(), average(terms)));
    EXPECT_EQ(model.module().layers[0]->bias.grad().abs().max().item<float>(), 0);
  });
}

}  // namespace
}  // namespace ddp::test
