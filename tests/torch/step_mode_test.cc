// Averaging at the step, compared with averaging during backward: buckets, hooks, control flow,
// memory.
#include <cmath>
#include <cstddef>
#include <map>
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
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/tensors/mesh_reduce.h"
#include "worker/ddp/tensors/tensors.h"

namespace ddp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

torch::optim::SGD sgd_of(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

void backward(Mlp& module, int rank, int step) {
  loss_of(module.forward(input_of(rank, step))).backward();
}

// The weights after ten steps. `prepare` is called before the first, `after_backward` in each.
template <typename Prepare>
std::string train(const GroupPtr& group, const DistributedOptimizerOptions& options,
                  Prepare prepare, bool set_to_none = true) {
  auto module = make_mlp(7);
  auto sgd = sgd_of(*module);
  DistributedOptimizer optimizer(sgd, *module, group, options);
  prepare(optimizer);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad(set_to_none);
    backward(*module, group->rank(), step);
    optimizer.step();
  }
  return bytes_of(*module);
}

std::string train(const GroupPtr& group, const DistributedOptimizerOptions& options = {}) {
  return train(group, options, [](DistributedOptimizer&) {});
}

TEST(StepMode, ReducesOneBucketInRegisteredMemory) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, *module, recording);
    backward(*module, group->rank(), 0);
    optimizer.reduce_gradients();
    expect_average_gradients(*module, 2);
    EXPECT_THAT(recording->take(), ElementsAre("model verification", "flags of used parameters",
                                               "bucket 0 of 1 (layer0.weight .. layer1.bias)"));
    // The parameters are compared once.
    optimizer.step();
    backward(*module, group->rank(), 1);
    optimizer.step();
    EXPECT_EQ(recording->take().size(), 2U);
    EXPECT_EQ(recording->reduced_elsewhere, 2) << "flags are in ordinary memory, gradients are not";
  });
}

TEST(StepMode, BucketsAreClosedAtTheCapAndChangeNoBit) {
  run_ranks({3}, [](const GroupPtr& group) {
    const std::string expected = train(group);
    for (const double cap : {1e-6, 1e-4}) {
      for (const bool views : {false, true}) {
        EXPECT_EQ(train(group, {cap, views}), expected) << cap << " MiB, views " << views;
      }
    }
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, *module, group, {1e-4, false});
    optimizer.reduce_gradients();
    EXPECT_THAT(optimizer.bucket_layout(),
                ElementsAre(ElementsAre("layer1.bias", "layer1.weight", "layer0.bias"),
                            ElementsAre("layer0.weight")));
    EXPECT_THROW(DistributedOptimizer(sgd, group, {-1, false}), std::invalid_argument);
  });
}

TEST(StepMode, GradientsMayBeTheBuckets) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto nothing = [](DistributedOptimizer&) {};
    EXPECT_EQ(train(group, {0, true}, nothing, true), train(group, {0, false}, nothing, true));
    EXPECT_EQ(train(group, {0, true}, nothing, false), train(group, {0, false}, nothing, false));

    auto recording = std::make_shared<RecordingGroup>(group);
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, recording, {0, true});
    backward(*module, group->rank(), 0);
    optimizer.step();
    const at::Tensor gradient = module->layers[0]->weight.grad();
    EXPECT_TRUE(recording->gave(gradient.data_ptr(), gradient.nbytes()));
    optimizer.zero_grad(/*set_to_none=*/false);
    EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
    backward(*module, group->rank(), 1);
    EXPECT_TRUE(module->layers[0]->weight.grad().is_same(gradient));
    sgd.zero_grad();  // LibTorch's own works too.
  });
}

// Losses that take turns, as in adversarial training: which parameters have a gradient depends on
// the rank and the step.
TEST(StepMode, AnyControlFlow) {
  run_ranks({3}, [](const GroupPtr& group) {
    const int rank = group->rank();
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, *module, group, {0, true});
    const auto uses_second = [](int of, int step) { return (of + step) % 3 == 0; };
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad(step % 2 == 0);
      std::vector<at::Tensor> terms;
      for (int of = 0; of < 3; ++of) {
        const auto again = make_mlp(7);
        for (std::size_t i = 0; i < 2; ++i) {
          const at::NoGradGuard no_grad;
          again->layers[i]->weight.copy_(module->layers[i]->weight);
        }
        Mlp& used = of == rank ? *module : *again;
        at::Tensor weight = used.layers[1]->weight;
        if (uses_second(of, step)) weight.square().sum().backward();
        if (uses_second(of, step)) weight.sum().backward();
        const at::Tensor gradient = weight.grad();
        terms.push_back(gradient.defined() ? gradient.clone() : torch::zeros_like(weight));
      }
      optimizer.reduce_gradients();
      EXPECT_TRUE(same_bytes(module->layers[1]->weight.grad(), average(terms))) << step;
      EXPECT_EQ(module->layers[0]->weight.grad().defined(), false);
      optimizer.step();
    }
  });
}

TEST(StepMode, PartsOfABatchAddUpToTheBatch) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto parts = make_mlp(7);
    auto sgd = sgd_of(*parts);
    DistributedOptimizer optimizer(sgd, group);
    auto whole = make_mlp(7);
    auto alone = sgd_of(*whole);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      std::vector<at::Tensor> joint;
      for (int part = 0; part < 4; ++part) {
        (loss_of(parts->forward(input_of(group->rank(), 4 * step + part))) / 4).backward();
        for (int rank = 0; rank < 2; ++rank) joint.push_back(input_of(rank, 4 * step + part));
      }
      optimizer.step();
      alone.zero_grad();
      loss_of(whole->forward(torch::cat(joint))).backward();
      alone.step();
    }
    for (std::size_t i = 0; i < parts->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(parts->parameters()[i], whole->parameters()[i], 0, 1e-6));
    }
  });
}

// A step left out must not make the next one use this rank's gradients.
TEST(StepMode, WhatIsReducedIsReducedOnce) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, recording);
    const auto reductions = [&] { return recording->take().size() / 2; };
    optimizer.step();
    recording->take();
    backward(*module, group->rank(), 0);
    optimizer.reduce_gradients();
    optimizer.clip_grad_norm_(1);
    optimizer.step();
    EXPECT_EQ(reductions(), 1U);
    optimizer.step();
    EXPECT_EQ(reductions(), 1U);
    optimizer.clip_grad_norm_(1);
    sgd.zero_grad();
    backward(*module, group->rank(), 1);
    optimizer.clip_grad_norm_(1);
    optimizer.step();
    EXPECT_EQ(reductions(), 2U);
    optimizer.reduce_gradients();
    optimizer.zero_grad();
    optimizer.step();
    EXPECT_EQ(reductions(), 2U);
    const auto all = mesh_reduce(
        "weights", bytes_of(*module), [](const auto& values) { return values; }, *group);
    EXPECT_EQ(all[0], all[1]);
  });
}

TEST(StepModeHooks, AllreduceChangesNoBit) {
  run_ranks({3}, [](const GroupPtr& group) {
    const std::string expected = train(group);
    for (const double cap : {0.0, 1e-4}) {
      EXPECT_EQ(train(group, {cap, true},
                      [&](DistributedOptimizer& optimizer) {
                        optimizer.register_comm_hook(group, allreduce_hook);
                      }),
                expected);
    }
  });
}

TEST(StepModeHooks, Fp16RoundsEveryRanksGradient) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, group);
    optimizer.register_comm_hook(group, fp16_compress_hook);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      backward(*module, group->rank(), step);
      optimizer.reduce_gradients();
      const auto mine = local_gradients(0, {step});
      const auto theirs = local_gradients(1, {step});
      for (const auto& [name, gradient] : gradients_of(*module)) {
        const auto rounded = [&](const at::Tensor& tensor) {
          return tensor.to(torch::kHalf).to(torch::kFloat);
        };
        const at::Tensor expected =
            rounded(average({rounded(mine.at(name)), rounded(theirs.at(name))}));
        EXPECT_TRUE(same_bytes(gradient, expected)) << name;
      }
    }
  });
}

// A hook with operations in its continuations, in another buffer and another type.
TEST(StepModeHooks, MayHaveStagesAndReplaceTheBuffer) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto recording = std::make_shared<RecordingGroup>(group);
    struct Seen {
      std::vector<std::pair<std::size_t, bool>> buckets;
    };
    auto seen = std::make_shared<Seen>();
    const auto hook = [&](Seen& state, GradBucket& bucket) {
      state.buckets.emplace_back(bucket.index(), bucket.is_last());
      const std::string name = "of " + std::to_string(bucket.index());
      const at::Tensor doubled = (bucket.buffer() * 2).to(torch::kDouble);
      bucket.set_buffer(doubled);
      const auto average_again = [&recording, name](const char* stage) {
        return [&recording, name, stage](const at::Tensor& sum) {
          const at::Tensor copy = sum.clone();
          WorkPtr work = recording->all_reduce(buffer_of(copy), ReduceOp::kAvg, {{}, stage + name});
          return Future(std::move(work), copy);
        };
      };
      return average_again("1 ")(doubled)
          .then(average_again("2 "))
          .then(average_again("3 "))
          .then([](const at::Tensor& sum) { return sum / 2; });
    };
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, *module, recording, {1e-4, true});
    optimizer.register_comm_hook(seen, hook);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      backward(*module, group->rank(), step);
      optimizer.reduce_gradients();
      const std::vector<std::string> tags = recording->take();
      const std::vector<std::string> last(tags.end() - 6, tags.end());
      EXPECT_THAT(last, ElementsAre("1 of 0", "1 of 1", "2 of 0", "2 of 1", "3 of 0", "3 of 1"));
      const auto first_rank = local_gradients(0, {step});
      const auto second_rank = local_gradients(1, {step});
      for (const auto& item : module->named_parameters()) {
        const at::Tensor& gradient = item.value().grad();
        const at::Tensor expected =
            average({first_rank.at(item.key()), second_rank.at(item.key())});
        EXPECT_TRUE(torch::allclose(gradient, expected)) << item.key();
        // The buckets have their own memory again.
        EXPECT_TRUE(recording->gave(gradient.data_ptr(), gradient.nbytes()));
      }
    }
    EXPECT_THAT(seen->buckets, ElementsAre(std::pair(0, false), std::pair(1, true),
                                           std::pair(0, false), std::pair(1, true)));
    const auto again = [&] { optimizer.register_comm_hook(group, allreduce_hook); };
    EXPECT_THAT(error_of(again), HasSubstr("only be called once; there is user already"));
    DistributedOptimizer late(sgd, recording);
    late.step();
    EXPECT_THAT(error_of([&] { late.register_comm_hook(group, allreduce_hook); }),
                HasSubstr("before the first reduction"));
  });
}

TEST(StepModeHooks, AResultThatIsNoGradientNamesTheBucket) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer optimizer(sgd, *module, group);
    optimizer.register_comm_hook(group, [](ProcessGroup&, GradBucket& bucket) {
      return Future(bucket.buffer().narrow(0, 1, 3));
    });
    backward(*module, group->rank(), 0);
    const std::string text = error_of([&] { optimizer.step(); });
    EXPECT_THAT(text, HasSubstr("bucket 0 of 1 (layer0.weight .. layer1.bias)"));
  });
}

TEST(StepModeHooks, RunInAGroupOfOne) {
  run_ranks({1}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    auto sgd = sgd_of(*module);
    DistributedOptimizer plain(sgd, group);
    backward(*module, 0, 0);
    const at::Tensor before = module->layers[0]->weight.grad().clone();
    plain.reduce_gradients();
    EXPECT_TRUE(same_bytes(module->layers[0]->weight.grad(), before));
    DistributedOptimizer hooked(sgd, group);
    hooked.register_comm_hook(group, fp16_compress_hook);
    hooked.reduce_gradients();
    EXPECT_TRUE(
        same_bytes(module->layers[0]->weight.grad(), before.to(torch::kHalf).to(torch::kFloat)));
  });
}

// Each rank's own losses would lead LBFGS to take another number of steps on each.
TEST(StepMode, ClosuresSeeTheAverage) {
  run_ranks({2}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    torch::optim::LBFGS lbfgs(module->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(5));
    DistributedOptimizer optimizer(lbfgs, group);
    float first = 0;
    float last = 0;
    for (int step = 0; step < 3; ++step) {
      const at::Tensor loss = optimizer.step([&] {
        optimizer.zero_grad();
        const at::Tensor mine = loss_of(module->forward(input_of(group->rank())));
        mine.backward();
        return mine;
      });
      last = loss.item<float>();
      if (step == 0) first = last;
      const auto losses = mesh_reduce(
          "losses", last, [](const auto& values) { return values; }, *group);
      EXPECT_EQ(losses[0], losses[1]);
    }
    EXPECT_LT(last, first / 2);
    const auto all = mesh_reduce(
        "weights", bytes_of(*module), [](const auto& values) { return values; }, *group);
    EXPECT_EQ(all[0], all[1]);
  });
}

TEST(MeshReduce, GivesEveryRanksValueInOrder) {
  run_ranks({2, 1}, [](const GroupPtr& group) {
    const int rank = group->rank();
    const auto all = [](const auto& values) { return values; };
    EXPECT_EQ(mesh_reduce("accuracy", 0.1 * rank, mean_of<double>, *group), (0.0 + 0.1 + 0.2) / 3);
    EXPECT_EQ(mesh_reduce("count", rank + 1, sum_of<int>, *group), 6);
    EXPECT_THAT(mesh_reduce("name", std::string(std::size_t(rank), 'x'), all, *group),
                ElementsAre("", "x", "xx"));
    const auto numbers = mesh_reduce("nan", rank == 1 ? std::nan("") : INFINITY, all, *group);
    EXPECT_TRUE(numbers[0] == INFINITY && std::isnan(numbers[1]));
    const auto maps = mesh_reduce("map", std::map<std::string, int>{{"rank", rank}}, all, *group);
    EXPECT_EQ(maps[2].at("rank"), 2);
    const auto tensors = mesh_reduce("tensor", torch::arange(rank, torch::kLong), all, *group);
    for (int of = 0; of < 3; ++of) {
      EXPECT_TRUE(torch::equal(tensors[std::size_t(of)], torch::arange(of, torch::kLong)));
    }
    EXPECT_THROW(mesh_reduce("sparse", torch::eye(2).to_sparse(), all, *group),
                 std::invalid_argument);
  });
}

}  // namespace
}  // namespace ddp::test
