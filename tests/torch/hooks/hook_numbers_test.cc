#include <cmath>
#include <mutex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch/hooks/hook_training.h"
#include "tests/torch/recording_group.h"
#include "worker/ddp/hooks/batched_power_sgd_hook.h"
#include "worker/ddp/hooks/compress_wrapper.h"
#include "worker/ddp/hooks/default_hooks.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/hooks/orthogonalize.h"
#include "worker/ddp/hooks/power_sgd_hook.h"
#include "worker/ddp/hooks/quantization_hooks.h"

// The numerical results of each hook, against plain averaging and against the hook's properties.
namespace ddp {
namespace {

using test::distance;
using test::formula;
using test::GroupPtr;
using test::HookTraining;
using test::run_ranks;
using test::same_bits;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kOrder = {"4.bias",   "4.weight", "2.bias",
                                         "2.weight", "0.bias",   "0.weight"};

// The parameters' end after some steps with the hook of that name.
at::Tensor end_of(const GroupPtr& group, const std::string& hook, std::int64_t steps,
                  const std::vector<std::size_t>& sizes = {}) {
  HookTraining training(group, make_comm_hook_from_text(hook, group), kOrder, sizes);
  training.steps_until(steps);
  return training.end();
}

// One bucket of gradients that somebody else fills.
struct Bucket {
  Bucket(const GroupPtr& group, const std::map<std::string, at::Tensor>& parameters)
      : buckets(test::make_buckets(parameters, names_of(parameters), {parameters.size()}, *group)) {
  }
  static std::vector<std::string> names_of(const std::map<std::string, at::Tensor>& parameters) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : parameters) names.push_back(name);
    return names;
  }
  at::Tensor& operator[](std::size_t index) {
    return const_cast<at::Tensor&>(buckets.front().gradients()[index]);
  }
  const at::Tensor& flat() const { return buckets.front().buffer(); }
  void run(CommHook& hook) { test::run_hook(runner, hook, buckets); }

  std::vector<GradBucket> buckets;
  HookRunner runner;
};

test::HookPtr power(const GroupPtr& group, PowerSGDOptions options) {
  return make_comm_hook(std::make_shared<PowerSGDState>(group, options), powerSGD_hook);
}

TEST(HookNumbersTest, AllReduceIsPlainAveraging) {
  run_ranks({3}, [](const GroupPtr& group) {
    Bucket bucket(group, {{"a", torch::zeros({5, 7})}, {"b", torch::zeros({3})}});
    const at::Tensor mine = formula({38}, group->rank(), 7);
    bucket.flat().copy_(mine);
    bucket.run(*make_comm_hook_from_text("allreduce", group));
    at::Tensor plain = mine.clone();
    group->all_reduce(buffer_of(plain), ReduceOp::kAvg)->wait();
    EXPECT_TRUE(same_bits(bucket.flat(), plain));
    EXPECT_GT(distance(plain, mine), 0.1);
  });
}

TEST(HookNumbersTest, NoopLeavesEachRankItsOwn) {
  run_ranks({2}, [](const GroupPtr& group) {
    Bucket bucket(group, {{"a", torch::zeros({5})}});
    const at::Tensor mine = formula({5}, group->rank(), 7);
    bucket.flat().copy_(mine);
    bucket.run(*make_comm_hook_from_text("noop", group));
    EXPECT_TRUE(same_bits(bucket.flat(), mine));
  });
}

// Compressing changes training by what compression is expected to lose, not more; measured with
// PyTorch: 8.8e-5 for fp16, a few percent for PowerSGD.
TEST(HookNumbersTest, DifferencesFromPlainAveragingHaveTheExpectedSize) {
  struct Bound {
    const char* hook;
    double least;
    double most;
  };
  run_ranks({2}, [](const GroupPtr& group) {
    const at::Tensor plain = end_of(group, "allreduce", 30);
    for (const Bound& bound : {Bound{"fp16", 1e-7, 3e-4}, Bound{"bf16", 1e-6, 3e-3},
                               Bound{"quantize_per_channel:bucket_size=64", 1e-6, 2e-2},
                               Bound{"powersgd:rank=4,start_iter=3,min_rate=0.5", 1e-6, 5e-2},
                               Bound{"powersgd:rank=1,start_iter=3", 1e-5, 1e-1},
                               Bound{"fp16+powersgd:rank=1,start_iter=3", 1e-5, 1e-1}}) {
      const double apart = distance(plain, end_of(group, bound.hook, 30));
      if (group->rank() == 0) fmt::print("{} after 30 steps: {:.2g}\n", bound.hook, apart);
      EXPECT_GE(apart, bound.least) << bound.hook;
      EXPECT_LE(apart, bound.most) << bound.hook;
    }
  });
}

TEST(HookNumbersTest, RanksEndWithTheSameBits) {
  for (const char* hook :
       {"fp16", "powersgd:rank=2,start_iter=2", "batched_powersgd:start_iter=2",
        "bf16+powersgd:rank=1,start_iter=2,min_rate=0.5", "quantize_per_tensor"}) {
    run_ranks({2, 1}, [hook](const GroupPtr& group) {
      const at::Tensor mine = end_of(group, hook, 6);
      at::Tensor first = mine.clone();
      group->broadcast(buffer_of(first), 0)->wait();
      EXPECT_TRUE(same_bits(mine, first)) << hook;
    });
  }
}

// How parameters lie in buckets is no business of the numbers, also if it changes halfway.
TEST(HookNumbersTest, LayoutOfBucketsChangesNothing) {
  for (const char* hook :
       {"allreduce", "fp16", "powersgd:rank=2,start_iter=2",
        "powersgd:rank=1,start_iter=2,error_feedback=false",
        "powersgd:rank=2,start_iter=2,warm_start=false", "bf16+powersgd:start_iter=2"}) {
    run_ranks({2}, [hook](const GroupPtr& group) {
      const at::Tensor one = end_of(group, hook, 9);
      EXPECT_TRUE(same_bits(one, end_of(group, hook, 9, {1, 3, 2}))) << hook;
      HookTraining changing(group, make_comm_hook_from_text(hook, group), kOrder, {2, 4});
      changing.steps_until(4);
      changing.rebuild({}, {1, 2, 3});
      changing.steps_until(6);
      changing.rebuild(kOrder, {2, 4});
      changing.steps_until(9);
      EXPECT_TRUE(same_bits(one, changing.end())) << hook << ", rebuilt twice";
    });
  }
}

TEST(HookNumbersTest, BatchingEqualShapesChangesOnlyRoundings) {
  run_ranks({2}, [](const GroupPtr& group) {
    const std::map<std::string, at::Tensor> parameters = {{"a", torch::zeros({16, 20})},
                                                          {"b", torch::zeros({16, 20})},
                                                          {"c", torch::zeros({20, 16})},
                                                          {"d", torch::zeros({4})}};
    PowerSGDOptions options;
    options.start_powerSGD_iter = 2;
    options.matrix_approximation_rank = 2;
    Bucket single(group, parameters);
    Bucket batched(group, parameters);
    const auto one = power(group, options);
    options.batch_tensors_with_same_shape = true;
    const auto other = power(group, options);
    for (int step = 0; step < 6; ++step) {
      const at::Tensor mine = formula({964}, 100 * group->rank() + step * 3, 9).square();
      single.flat().copy_(mine);
      batched.flat().copy_(mine);
      single.run(*one);
      batched.run(*other);
      EXPECT_LE(distance(single.flat(), batched.flat()), 1e-4) << "step " << step;
    }
  });
}

TEST(HookNumbersTest, Fp16WrapperOfAllReduceIsTheFp16Hook) {
  run_ranks({2}, [](const GroupPtr& group) {
    EXPECT_TRUE(same_bits(end_of(group, "fp16", 5, {2, 4}), end_of(group, "fp16+allreduce", 5)));
    EXPECT_TRUE(same_bits(end_of(group, "bf16", 5, {2, 4}), end_of(group, "bf16+allreduce", 5)));
    EXPECT_FALSE(same_bits(end_of(group, "bf16", 5), end_of(group, "fp16", 5)));
  });
}

TEST(HookNumbersTest, WrappersGiveTheBucketsOwnTypeAndBuffer) {
  run_ranks({2}, [](const GroupPtr& group) {
    Bucket bucket(group, {{"a", torch::zeros({4, 5})}});
    at::ScalarType seen = at::kFloat;
    const auto look = [&seen](ProcessGroup& of, GradBucket& inner) {
      seen = inner.buffer().scalar_type();
      EXPECT_EQ(inner.gradients().front().scalar_type(), seen);
      return allreduce_hook(of, inner);
    };
    const auto hook = fp16_compress_wrapper(make_comm_hook(group, look));
    bucket.flat().fill_(1.0F / 3.0F);
    const at::Tensor before = bucket.flat();
    const at::Tensor result = hook->run(bucket.buckets.front()).wait();
    EXPECT_EQ(seen, at::kHalf);
    EXPECT_TRUE(is_same_memory(result, before));
    EXPECT_TRUE(is_same_memory(bucket.flat(), before));
    EXPECT_LE(distance(result, torch::full({20}, 1.0F / 3.0F)), 1e-4);
    // As PyTorch's: around a function.
    const auto nested = make_comm_hook(group, bf16_compress_wrapper(allreduce_hook));
    EXPECT_EQ(nested->run(bucket.buckets.front()).wait().scalar_type(), at::kFloat);
    EXPECT_EQ(hook->name(), "fp16+user");
  });
}

TEST(HookNumbersTest, Fp16SumsDoNotOverflowAndHugeValuesDo) {
  run_ranks({4}, [](const GroupPtr& group) {
    Bucket bucket(group, {{"a", torch::zeros({2})}});
    bucket.flat()[0] = 60000;
    bucket.flat()[1] = 70000;
    bucket.run(*make_comm_hook_from_text("fp16", group));
    EXPECT_EQ(bucket.flat()[0].item<float>(), 60000);
    EXPECT_TRUE(std::isinf(bucket.flat()[1].item<float>()));
  });
}

// A gradient of rank one is reproduced by one step of rank one, however its parameter lies in
// memory; what lies beside it is averaged.
TEST(HookNumbersTest, PowerSGDReproducesWhatHasItsRank) {
  const auto check = [](at::ScalarType type, double tolerance) {
    run_ranks({2}, [&](const GroupPtr& group) {
      const auto options = at::TensorOptions(type);
      Bucket bucket(
          group,
          {{"conv", torch::zeros({6, 4, 3, 3}, options).contiguous(at::MemoryFormat::ChannelsLast)},
           {"linear", torch::zeros({10, 12}, options)},
           {"scalar", torch::zeros({}, options)},
           {"turned", torch::zeros({9, 14}, options).t()},
           {"vector", torch::zeros({11}, options)}});
      PowerSGDOptions chosen;
      chosen.start_powerSGD_iter = 0;
      chosen.use_error_feedback = false;
      chosen.warm_start = false;
      const auto hook = power(group, chosen);
      std::vector<at::Tensor> expected;
      for (std::size_t i = 0; i < 5; ++i) {
        at::Tensor& gradient = bucket[i];
        const auto salt = static_cast<std::int64_t>(10 * i);
        at::Tensor mine = formula(gradient.sizes(), salt, 20).to(type);
        if (gradient.dim() > 1) {
          const std::int64_t rows = gradient.size(0);
          // In the type itself, or it would be of rank one only to float32's precision.
          const auto exact = type == at::kDouble ? at::kDouble : at::kFloat;
          mine = torch::mm(formula({rows, 1}, salt, 50).to(exact),
                           formula({1, gradient.numel() / rows}, salt + 1, 50).to(exact))
                     .view(gradient.sizes())
                     .to(type);
        }
        gradient.copy_(mine * (group->rank() + 1));
        expected.push_back(mine * 1.5);
      }
      bucket.run(*hook);
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_LE(distance(bucket[i], expected[i]), tolerance)
            << bucket.buckets.front().names()[i] << " as " << type_name(type);
      }
    });
  };
  check(at::kFloat, 1e-5);
  check(at::kDouble, 1e-12);
  check(at::kBFloat16, 3e-2);
  check(at::kHalf, 5e-3);
}

// What is applied and what is still owed add up, over the ranks, to what was given: nothing is
// lost.
TEST(HookNumbersTest, ErrorFeedbackLosesNothing) {
  for (const char* text :
       {"powersgd:rank=1,start_iter=2", "batched_powersgd:rank=1,start_iter=2"}) {
    run_ranks({2}, [text](const GroupPtr& group) {
      Bucket bucket(group, {{"a", torch::zeros({16, 20})}, {"b", torch::zeros({30, 10})}});
      const auto hook = make_comm_hook_from_text(text, group);
      at::Tensor balance = torch::zeros({620}, at::kDouble);  // Given, averaged, less applied.
      double lost = 0;
      for (int step = 0; step < 6; ++step) {
        bucket.flat().copy_(formula({620}, 100 * group->rank() + step * 3, 90).square());
        at::Tensor mean = bucket.flat().clone();
        group->all_reduce(buffer_of(mean), ReduceOp::kAvg)->wait();
        bucket.run(*hook);
        balance += mean.to(at::kDouble) - bucket.flat().to(at::kDouble);
        lost = std::max(lost, distance(mean, bucket.flat()));
      }
      const CommHookState state = hook->state();
      at::Tensor owed =
          at::cat({state.per_rank.at("error/a").view(-1), state.per_rank.at("error/b").view(-1)});
      group->all_reduce(buffer_of(owed), ReduceOp::kAvg)->wait();
      EXPECT_LE(distance(balance, owed), 1e-5) << text;
      EXPECT_GT(lost, 1e-4) << text << ": nothing was compressed";
    });
  }
}

TEST(HookNumbersTest, AGradientOfZerosIsNoTrap) {
  for (const char* text : {"powersgd:rank=1,start_iter=2", "powersgd:rank=3,start_iter=2",
                           "batched_powersgd:rank=1,start_iter=2"}) {
    run_ranks({2}, [text](const GroupPtr& group) {
      Bucket bucket(group, {{"a", torch::zeros({16, 20})}});
      const auto hook = make_comm_hook_from_text(text, group);
      for (int step = 0; step < 8; ++step) {
        const bool is_zero = step < 3 || step == 5;
        bucket.flat().copy_(formula({320}, group->rank() + step, is_zero ? INFINITY : 90));
        bucket.run(*hook);
        EXPECT_TRUE(at::isfinite(bucket.flat()).all().item<bool>()) << text << ", step " << step;
        if (!is_zero) {
          EXPECT_GT(bucket.flat().abs().max().item<float>(), 0.01F) << text << ", step " << step;
        }
      }
    });
  }
}

TEST(HookNumbersTest, QsAreTheSameOnAllRanksAndDifferentInEachStep) {
  run_ranks({2}, [](const GroupPtr& group) {
    std::set<float> seen;
    PowerSGDOptions options;
    options.start_powerSGD_iter = 0;
    options.use_error_feedback = false;
    options.warm_start = false;
    PowerSGDState state(group, options);
    Bucket bucket(group, {{"a", torch::zeros({16, 20})}, {"b", torch::zeros({16, 20})}});
    const auto mine = formula({640}, group->rank(), 90);
    std::vector<at::Tensor> results;
    for (int step = 0; step < 3; ++step) {
      bucket.flat().copy_(mine);
      Future future = powerSGD_hook(state, bucket.buckets.front());
      at::Tensor result = future.wait().clone();
      at::Tensor first = result.clone();
      group->broadcast(buffer_of(first), 0)->wait();
      EXPECT_TRUE(same_bits(result, first));
      for (const at::Tensor& other : results) EXPECT_GT(distance(other, result), 1e-3);
      results.push_back(result);
    }
    EXPECT_EQ(state.iter(), 3);
  });
}

TEST(HookNumbersTest, WhatIsNotCompressedGoesFirstAndStagesOfBucketsOverlap) {
  const auto recorded = [](const GroupPtr& plain) {
    auto group = std::make_shared<test::RecordingGroup>(plain);
    HookTraining training(group, make_comm_hook_from_text("powersgd:start_iter=2", group), kOrder,
                          {4, 2});
    training.steps_until(3);
    group->take();
    training.step();
    return group->take();
  };
  run_ranks({2}, [&recorded](const GroupPtr& plain) {
    const std::string first = "bucket 0 (4.bias .. 2.weight), ";
    const std::string second = "bucket 1 (0.bias .. 0.weight), ";
    EXPECT_THAT(recorded(plain),
                ElementsAre(first + "what is not compressed", first + "PowerSGD's P",
                            second + "what is not compressed", second + "PowerSGD's P",
                            first + "PowerSGD's Q", second + "PowerSGD's Q"));
  });
}

TEST(HookNumbersTest, CompressionStatsCountElements) {
  run_ranks({2}, [](const GroupPtr& group) {
    PowerSGDOptions options;
    options.start_powerSGD_iter = 2;
    options.compression_stats_logging_frequency = 2;
    auto state = std::make_shared<PowerSGDState>(group, options);
    std::vector<std::string> lines;
    state->on_stats = [&lines](const std::string& line) { lines.push_back(line); };
    HookTraining training(group, make_comm_hook(state, powerSGD_hook), kOrder, {3, 3});
    training.steps_until(2);
    EXPECT_EQ(state->compression_stats().rate, 0);
    training.steps_until(6);
    // 12x8, 12x12 and 6x12 are compressed, 30 biases are not.
    const CompressionStats stats = state->compression_stats();
    EXPECT_EQ(stats.numel_before_compression, 4 * (96 + 144 + 72 + 30));
    EXPECT_EQ(stats.numel_after_compression, 4 * (20 + 24 + 18 + 30));
    EXPECT_DOUBLE_EQ(stats.rate, 342.0 / 92.0);
    if (group->rank() != 0) {
      EXPECT_THAT(lines, ElementsAre());
      return;
    }
    EXPECT_THAT(lines, ElementsAre("PowerSGD: step 2, 342 elements compressed to 92, rate 3.7",
                                   "PowerSGD: step 4, 1026 elements compressed to 276, rate 3.7"));
  });
}

TEST(HookNumbersTest, QuantizationIsExactToHalfAStep) {
  run_ranks({3}, [](const GroupPtr& group) {
    for (const char* text : {"quantize_per_tensor", "quantize_per_channel:bucket_size=10"}) {
      Bucket bucket(group, {{"a", torch::zeros({5, 5})}, {"b", torch::zeros({8})}});
      at::Tensor mean = formula({33}, group->rank(), 100);
      mean[4] = 3.0F;
      bucket.flat().copy_(mean);
      group->all_reduce(buffer_of(mean), ReduceOp::kAvg)->wait();
      bucket.run(*make_comm_hook_from_text(text, group));
      EXPECT_LE(distance(bucket.flat(), mean), 3.5 / 255 / 2) << text;
      EXPECT_GT(distance(bucket.flat(), mean), 1e-5) << text;
      const bool is_finer =
          distance(bucket.flat().narrow(0, 10, 23), mean.narrow(0, 10, 23)) < 1.0 / 255 / 2 + 1e-6;
      EXPECT_EQ(is_finer, std::string(text).starts_with("quantize_per_channel")) << text;
    }
  });
}

TEST(HookNumbersTest, QuantizationOfWhatIsNotFiniteIsNotANumberOnAllRanks) {
  run_ranks({2}, [](const GroupPtr& group) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      Bucket bucket(group, {{"a", torch::zeros({30})}});
      bucket.flat().fill_(0.5F);
      if (group->rank() == 1) bucket.flat()[12] = bad;
      bucket.run(*make_comm_hook_from_text("quantize_per_channel:bucket_size=10", group));
      EXPECT_TRUE(at::isnan(bucket.flat().narrow(0, 10, 10)).all().item<bool>());
      EXPECT_LE(distance(bucket.flat().narrow(0, 0, 10), torch::full({10}, 0.5F)), 1e-6);
      EXPECT_LE(distance(bucket.flat().narrow(0, 20, 10), torch::full({10}, 0.5F)), 1e-6);
    }
  });
}

TEST(HookNumbersTest, OrthogonalizeGivesAnOrthonormalBasis) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const std::int64_t columns : {1, 2, 4}) {
      const at::Tensor matrices = formula({3, 9, columns}, 5, 10).to(type).square().contiguous();
      const at::Tensor before = matrices.clone();
      orthogonalize(matrices, 0);
      const at::Tensor products = at::bmm(matrices.transpose(1, 2), matrices);
      EXPECT_LE(distance(products, at::eye(columns, products.options()).expand_as(products)), 1e-5);
      // The same span: projecting changes nothing.
      const at::Tensor projected = at::bmm(matrices, at::bmm(matrices.transpose(1, 2), before));
      EXPECT_LE(distance(projected, before), 2e-4);
    }
  }
}

TEST(HookNumbersTest, OptionsThatMakeNoSenseAreRefused) {
  run_ranks({1}, [](const GroupPtr& group) {
    const auto error_of = [&group](auto change) -> std::string {
      PowerSGDOptions options;
      change(options);
      try {
        PowerSGDState state(group, options);
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "accepted";
    };
    EXPECT_THAT(error_of([](auto& o) { o.matrix_approximation_rank = 0; }),
                HasSubstr("matrix_approximation_rank must be at least 1, not 0"));
    EXPECT_THAT(error_of([](auto& o) { o.start_powerSGD_iter = 1; }),
                HasSubstr("start_powerSGD_iter must be greater than 1 with use_error_feedback"));
    EXPECT_THAT(error_of([](auto& o) {
                  o.start_powerSGD_iter = 1;
                  o.use_error_feedback = false;
                }),
                HasSubstr("greater than 1"));
    EXPECT_EQ(error_of([](auto& o) {
                o.start_powerSGD_iter = 1;
                o.use_error_feedback = false;
                o.warm_start = false;
              }),
              "accepted");
    EXPECT_THAT(error_of([](auto& o) { o.min_compression_rate = NAN; }),
                HasSubstr("min_compression_rate"));
    EXPECT_THAT(error_of([](auto& o) { o.orthogonalization_epsilon = -1; }),
                HasSubstr("orthogonalization_epsilon"));
    GradBucket bucket;
    EXPECT_THROW(quantization_perchannel_hook(*group, bucket, 0), std::invalid_argument);
    EXPECT_THROW(PowerSGDState(nullptr), std::invalid_argument);
  });
}

}  // namespace
}  // namespace ddp
