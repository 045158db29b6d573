// Options of DistributedDataParallel that change what is reduced, or when.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
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
#include "tests/torch/recording_group.h"
#include "worker/ddp/distributed_data_parallel.h"

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
    model.set_trace(std::make_shared<Trace>(0));
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

// An embedding and a layer on its mean.
struct Words : torch::nn::Module {
  explicit Words(bool sparse) {
    table = register_module(
        "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(sparse)));
    layer = register_module("layer", torch::nn::Linear(4, 3));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& words, bool use_table = true) {
    if (!use_table) return layer(torch::ones({1, 4}));
    return layer(table(words));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};

at::Tensor words_of(int rank, int step) {
  return torch::randint(10, {2 + rank}, seeded(static_cast<std::uint64_t>(17 * rank + step)))
      .to(torch::kLong);
}

TEST(SparseGradients, AreTheAverageOfTheDenseOnes) {
  for (const int world : {1, 2, 3}) {
    run_ranks({world}, [&](const GroupPtr& group) {
      DistributedDataParallel sparse(std::make_shared<Words>(true), group);
      DistributedDataParallel dense(std::make_shared<Words>(false), group);
      for (int step = 0; step < 4; ++step) {
        sparse.zero_grad(/*set_to_none=*/step != 1);
        dense.zero_grad(/*set_to_none=*/step != 1);
        if (step == 2) {
          const auto guard = sparse.no_sync();
          const auto other = dense.no_sync();
          loss_of(sparse(words_of(group->rank(), 9))).backward();
          loss_of(dense(words_of(group->rank(), 9))).backward();
        }
        loss_of(sparse(words_of(group->rank(), step))).backward();
        loss_of(dense(words_of(group->rank(), step))).backward();
        const at::Tensor gradient = sparse.module().table->weight.grad();
        ASSERT_EQ(gradient.layout(), at::kSparse);
        EXPECT_TRUE(
            torch::allclose(gradient.to_dense(), dense.module().table->weight.grad(), 1e-5, 1e-7))
            << step;
        EXPECT_TRUE(
            same_bytes(sparse.module().layer->weight.grad(), dense.module().layer->weight.grad()));
      }
    });
  }
}

TEST(SparseGradients, OfAnEmbeddingThatARankDoesNotUse) {
  run_ranks({3}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    DistributedDataParallel model(std::make_shared<Words>(true), group, options);
    const at::Tensor weight = model.module().table->weight;
    loss_of(model(words_of(0, 0), false)).backward();
    EXPECT_FALSE(weight.grad().defined());
    loss_of(model(words_of(0, 0), group->rank() == 1)).backward();
    Words reference(true);
    loss_of(reference.forward(words_of(0, 0))).backward();
    EXPECT_TRUE(torch::allclose(weight.grad().to_dense(),
                                reference.table->weight.grad().to_dense() / 3, 1e-5, 1e-8));
  });
}

TEST(SparseGradients, TravelWhateverTheHookDoes) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallel model(std::make_shared<Words>(true), group);
    model.register_comm_hook(std::make_shared<int>(0), [](int&, GradBucket& bucket) {
      for (const std::string& name : bucket.names()) EXPECT_THAT(name, HasSubstr("layer"));
      return Future(bucket.buffer().zero_());
    });
    loss_of(model(words_of(group->rank(), 0))).backward();
    EXPECT_GT(model.module().table->weight.grad().to_dense().abs().max().item<float>(), 0);
    EXPECT_EQ(model.module().layer->weight.grad().abs().max().item<float>(), 0);
  });
}

// What mixed precision has to give for make_mlp(7): gradients computed in bfloat16 by each rank,
// added in float32, rounded to `reduce` once.
std::map<std::string, at::Tensor> low_precision_average(int world, at::ScalarType reduce,
                                                        const std::vector<at::Tensor>& weights,
                                                        int step) {
  std::map<std::string, std::vector<at::Tensor>> terms;
  for (int rank = 0; rank < world; ++rank) {
    auto module = make_mlp(7);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < weights.size(); ++i) module->parameters()[i].copy_(weights[i]);
    }
    module->to(torch::kBFloat16);
    loss_of(module->forward(input_of(rank, step).to(torch::kBFloat16))).backward();
    for (const auto& item : module->named_parameters()) {
      terms[item.key()].push_back(item.value().grad().to(torch::kFloat));
    }
  }
  std::map<std::string, at::Tensor> result;
  for (auto& [name, of_ranks] : terms) {
    result[name] = average(of_ranks).to(reduce).to(torch::kFloat);
  }
  return result;
}

TEST(MixedPrecision, ComputesLowAndAveragesAsAskedButStepsInFull) {
  for (const at::ScalarType reduce : {torch::kBFloat16, torch::kFloat}) {
    for (const int world : {1, 2, 4}) {
      for (const bool views : {false, true}) {
        run_ranks({world}, [&](const GroupPtr& group) {
          DistributedDataParallelOptions options;
          options.mixed_precision.param_dtype = torch::kBFloat16;
          options.mixed_precision.reduce_dtype = reduce;
          options.gradient_as_bucket_view = views;
          DistributedDataParallel model(make_mlp(7), group, options);
          torch::optim::SGD optimizer(model.module().parameters(), 0.1);
          for (int step = 0; step < 3; ++step) {
            model.zero_grad();
            std::vector<at::Tensor> weights;
            for (const auto& parameter : model.module().parameters()) {
              EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
              weights.push_back(parameter.detach().clone());
            }
            const at::Tensor output = model(input_of(group->rank(), step));
            EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
            loss_of(output).backward();
            const auto expected = low_precision_average(world, reduce, weights, step);
            for (const auto& item : model.module().named_parameters()) {
              EXPECT_TRUE(same_bytes(item.value().grad(), expected.at(item.key())))
                  << item.key() << " world " << world << " step " << step;
            }
            optimizer.step();
          }
        });
      }
    }
  }
}

TEST(MixedPrecision, LeavesFullParametersBehindNoSyncAndForwardsWithoutGradients) {
  run_ranks({2}, [](const GroupPtr& group) {
    DistributedDataParallelOptions options;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    options.mixed_precision.buffer_dtype = torch::kBFloat16;
    auto module = make_mlp(7);
    module->register_buffer("scale", torch::ones({1}));
    module->register_buffer("count", torch::ones({1}, torch::kLong));
    DistributedDataParallel model(module, group, options);
    EXPECT_EQ(module->named_buffers()["scale"].scalar_type(), torch::kBFloat16);
    EXPECT_EQ(module->named_buffers()["count"].scalar_type(), torch::kLong);
    const std::string before = bytes_of(*module);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(model(input_of(0)).scalar_type(), torch::kBFloat16);
    }
    EXPECT_EQ(bytes_of(*module), before);
    {
      const auto guard = model.no_sync();
      loss_of(model(input_of(group->rank(), 0))).backward();
    }
    EXPECT_EQ(bytes_of(*module), before);
    EXPECT_EQ(module->layers[0]->weight.grad().scalar_type(), torch::kFloat);
    const at::Tensor local = module->layers[0]->weight.grad().clone();
    loss_of(model(input_of(group->rank(), 1))).backward();
    EXPECT_EQ(bytes_of(*module), before);
    EXPECT_FALSE(same_bytes(module->layers[0]->weight.grad(), local));
    const at::Tensor both = module->layers[0]->weight.grad();
    EXPECT_EQ(both.scalar_type(), torch::kFloat);
  });
}

TEST(TwoThreads, AtOneModelAtOnceAreRefused) {
  run_ranks({1}, [](const GroupPtr& group) {
    auto module = std::make_shared<Changing>();
    DistributedDataParallel model(module, group);
    const at::Tensor first = model(true);
    const at::Tensor second = model(true);
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

TEST(Parameters, OfAnotherTypeThanAtConstructionAreNamed) {
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

TEST(Gradients, ThatAreUndefinedCountAsZeroWhereAnotherRankHasOne) {
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

}  // namespace
}  // namespace ddp::test
