// Mistakes that LibTorch makes easy, one test each:
//
//   one reducer a module             Hazard.TwoReducersOfOneParameterAreRefused
//   a backward before the last ended Failures.ABackwardInsideAnotherIsRefused
//   backward on two threads          Hazard.BackwardsOnTwoThreadsAtOnceAreRefused
//   re-entrant backward              StaticGraph.TakesBackwardsInsideBackwardAndParameters...,
//                                    StaticGraph.WithoutItABackwardInsideAnotherIsRefusedInWords
//   retain_graph, second backward    Hazard.RetainGraph..., DataParallelModes.ASecondBackward...
//   copies must not be recorded      Hazard.NothingThatWeWriteIsRecordedByAutograd
//   create_graph                     HigherOrder.CreateGraphStillAverages
//   fork after threads exist         Hazard.AChildOfATrainingProcessDisturbsNothing
//   gradients of another type        Hazard.AGradientOfAnotherTypeIsNamed,
//                                    Hazard.ParametersOfAnotherTypeThanAtConstructionAreNamed
//   channels_last and other strides  Hazard.StridesOfGradientsAreThoseOfTheirParameters
//   undefined gradients              Hazard.UndefinedGradientsCountAsZeroWhereAnotherRankHasOne
//   sparse gradients                 SparseGradients.*, Failures.AnUnexpectedSparseGradient...
//   hooks that outlive their owner   Hazard.DestructionInAnyOrder,
//                                    Failures.ADestroyedModelLeavesItsModuleUsable
//   a backward that throws           Failures.ABackwardThatThrowsOnOneRank...
//
// The communication thread also competes with backward for processors, which only affects speed:
// see `bench/run ddp`.
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/worker_world.h"
#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

struct Product : torch::nn::Module {
  Product() {
    a = register_parameter("a", torch::ones({4}));
    b = register_parameter("b", torch::ones({4}));
  }
  at::Tensor forward() { return (a * b).sum(); }
  at::Tensor a;
  at::Tensor b;
};

TEST(Hazard, TwoReducersOfOneParameterAreRefused) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    auto first = std::make_unique<DistributedDataParallel<Mlp>>(module, group);
    // As when a model is wrapped again for another group: the old one may go after the new one has
    // come.
    auto second = std::make_unique<DistributedDataParallel<Mlp>>(module, group);
    first.reset();
    loss_of((*second)(input_of(group->rank()))).backward();
    expect_average_gradients(*module, 2);
  });
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    DistributedDataParallel first(module, group);
    DistributedDataParallel second(module->layers[1].ptr(), group);
    // Who is still in the barrier when the other one aborts the group has it from there.
    EXPECT_THAT(error_of([&] {
                  group->barrier()->wait();
                  loss_of(first(input_of(group->rank()))).backward();
                }),
                HasSubstr("parameter layer1.weight is reduced by 2"));
  });
}

TEST(Hazard, RetainGraphAndASecondBackwardAddsToTheAverageOnce) {
  for (const bool views : {false, true}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel model(std::make_shared<Product>(), group, options);
      const at::Tensor loss = model() * (1 + group->rank());
      loss.backward({}, /*retain_graph=*/true);
      EXPECT_TRUE(torch::equal(model.module().a.grad(), torch::full({4}, 1.5)));
      // The average of what is there, 1.5 on both, and of 1 and 2.
      loss.backward();
      EXPECT_TRUE(torch::equal(model.module().a.grad(), torch::full({4}, 3.0)));
    });
  }
}

TEST(Hazard, NothingThatWeWriteIsRecordedByAutograd) {
  for (const bool views : {false, true}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel model(std::make_shared<Product>(), group, options);
      ASSERT_TRUE(at::GradMode::is_enabled());
      for (int step = 0; step < 3; ++step) {
        model.zero_grad(/*set_to_none=*/step == 1);
        model().backward();
        const at::Tensor& gradient = model.module().a.grad();
        EXPECT_FALSE(gradient.requires_grad());
        EXPECT_EQ(gradient.grad_fn(), nullptr);
        EXPECT_TRUE(model.module().a.is_leaf());
      }
      // Who computes with a gradient is told that it has changed since.
      const at::Tensor scale = torch::ones({4}, torch::requires_grad());
      const at::Tensor norm = (model.module().a.grad() * scale).sum();
      model().backward();
      if (views) {
        EXPECT_THAT(error_of([&] { norm.backward(); }), HasSubstr("modified by an inplace"));
      }
    });
  }
}

TEST(Hazard, AChildOfATrainingProcessDisturbsNothing) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(make_mlp(7), group);
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      const at::Tensor loss = loss_of(model(input_of(group->rank(), step)));
      // While this rank's threads, and on rank 1 its buckets, are at work. A child has one thread,
      // so it may do no more than become another program or end.
      const pid_t child = ::fork();
      if (child == 0) ::_exit(7);
      ASSERT_GT(child, 0);
      if (group->rank() == 0) {
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(WEXITSTATUS(status), 7);
        loss.backward();
      } else {
        loss.backward();
        ASSERT_EQ(::waitpid(child, nullptr, 0), child);
      }
      expect_average_gradients(model.module(), 2, {step});
    }
  });
}

TEST(Hazard, AGradientOfAnotherTypeIsNamed) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(std::make_shared<Product>(), group);
    // Autograd adds to what it finds.
    model.module().b.mutable_grad() = torch::zeros({4}, torch::kDouble);
    EXPECT_THAT(
        error_of([&] { model().backward(); }),
        HasSubstr(
            "the gradient of b (float32 [4]) is float64 [4] on cpu; to be reduced, it must be "
            "dense, have its parameter's sizes and type and be on its device, cpu"));
  });
}

TEST(Hazard, StridesOfGradientsAreThoseOfTheirParameters) {
  struct Filters : torch::nn::Module {
    Filters() {
      const at::Tensor values = random_tensor({4, 3, 2, 2}, 5);
      weight = register_parameter("weight", values.contiguous(at::MemoryFormat::ChannelsLast));
      turned = register_parameter("turned",
                                  random_tensor({3, 5}, 6).t().clone(at::MemoryFormat::Preserve));
    }
    at::Tensor forward(const at::Tensor& x) {
      return torch::conv2d(x, weight).pow(2).mean() + turned.pow(2).sum();
    }
    at::Tensor weight;
    at::Tensor turned;
  };
  const auto images = [](int rank) {
    return random_tensor({2, 3, 5, 5}, 40 + static_cast<std::uint64_t>(rank))
        .contiguous(at::MemoryFormat::ChannelsLast);
  };
  std::vector<at::Tensor> terms;
  for (int rank = 0; rank < 2; ++rank) {
    Filters alone;
    alone.forward(images(rank)).backward();
    terms.push_back(alone.weight.grad().contiguous());
  }
  for (const bool views : {false, true}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel model(std::make_shared<Filters>(), group, options);
      for (int step = 0; step < 2; ++step) {
        model.zero_grad(/*set_to_none=*/step == 0);
        model(images(group->rank())).backward();
        const Filters& module = model.module();
        EXPECT_EQ(module.weight.grad().strides(), module.weight.strides());
        EXPECT_EQ(module.turned.grad().strides(), module.turned.strides());
        EXPECT_TRUE(same_bytes(module.weight.grad().contiguous(), average(terms)));
        EXPECT_TRUE(torch::equal(module.turned.grad(), module.turned * 2));
      }
    });
  }
}

TEST(Hazard, DestructionInAnyOrder) {
  run_ranks({2}, [](GroupPtr group) {
    auto module = make_mlp(7);
    at::Tensor loss;
    {
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = true;
      DistributedDataParallel model(module, group, options);
      loss_of(model(input_of(group->rank()))).backward();
      loss = loss_of(model(input_of(group->rank(), 1)));
      group->barrier()->wait();
    }
    // The model and its hooks are gone: what its forward left is a graph as any other.
    const int rank = group->rank();
    group.reset();
    const at::Tensor before = module->layers[0]->bias.grad().clone();
    loss.backward();
    const at::Tensor local = local_gradients(rank, {1}).at("layer0.bias");
    EXPECT_TRUE(torch::allclose(module->layers[0]->bias.grad() - before, local, 1e-4, 1e-7));
    module.reset();
    loss.reset();
  });
}

TEST(Hazard, BackwardsOnTwoThreadsAtOnceAreRefused) {
  run_ranks({1}, [](const GroupPtr& group) {
    auto module = std::make_shared<Product>();
    DistributedDataParallel model(module, group);
    const at::Tensor first = model();
    const at::Tensor second = model();
    int arrivals = 0;
    std::string error;
    const auto at_arrival = [&](const at::Tensor& gradient) {
      // One gradient has been handled then.
      if (++arrivals == 2) {
        std::thread([&] { error = error_of([&] { second.backward(); }); }).join();
      }
      return gradient;
    };
    module->a.register_hook(at_arrival);
    module->b.register_hook(at_arrival);
    first.backward();
    EXPECT_THAT(error, HasSubstr("before another one had ended"));
  });
}

TEST(Hazard, ParametersOfAnotherTypeThanAtConstructionAreNamed) {
  run_ranks({2}, [](const GroupPtr& group) {
    const std::string error = error_of([&] {
      auto module = make_mlp(7);
      DistributedDataParallel model(module, group);
      module->layers[0]->to(torch::kDouble);
      loss_of(model(input_of(group->rank()).to(torch::kDouble))).backward();
    });
    EXPECT_THAT(error, HasSubstr("parameter layer0.weight is float64 now"));
  });
}

// Returns no gradient at all for its input.
struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST(Hazard, UndefinedGradientsCountAsZeroWhereAnotherRankHasOne) {
  run_ranks({2}, [](const GroupPtr& group) {
    struct Half : torch::nn::Module {
      Half() { weight = register_parameter("weight", torch::ones({4})); }
      at::Tensor forward(bool with) {
        return (with ? weight * 2 : NoGradient::apply(weight)).sum();
      }
      at::Tensor weight;
    };
    DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    DistributedDataParallel model(std::make_shared<Half>(), group, options);
    model(group->rank() == 0).backward();
    EXPECT_TRUE(torch::equal(model.module().weight.grad(), torch::ones({4})));
  });
}

TEST(Timeouts, NameTheBucketItsParametersAndWhoIsMissing) {
  const auto groups = thread_groups({2}, LinkKind::kSocketPair, std::chrono::seconds(3));
  on_ranks(2, [&](Rank rank) {
    DistributedDataParallel model(make_mlp(7), groups[static_cast<std::size_t>(rank)]);
    if (rank == 1) return;  // Its loss has nothing to do with the model, for example.
    const std::string error = error_of([&] { loss_of(model(input_of(rank))).backward(); });
    EXPECT_THAT(error, HasSubstr("bucket 0 of 1 (layer0.weight .. layer1.bias)"));
    EXPECT_THAT(error, HasSubstr("rank 1"));
  });
}

}  // namespace
}  // namespace ddp::test
