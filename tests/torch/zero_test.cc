// ZeroRedundancyOptimizer against the optimizer that it divides, bit for bit, and what it promises
// about memory, checkpoints, uneven input and errors.
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/data_parallel_fixture.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/checkpointer.h"
#include "worker/ddp/clip_grad.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Model = DistributedDataParallel<Mlp>;
using Parameters = std::vector<at::Tensor>;

// Nothing in it divides evenly.
const std::vector<std::int64_t> kUneven = {6, 37, 11, 4};
// Shares beyond ZeroPartition's cache lines.
const std::vector<std::int64_t> kLarge = {6, 401, 67, 4};

struct OptimizerCase {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)> make;
};

std::vector<OptimizerCase> optimizers() {
  using namespace torch::optim;
  return {
      {"SGD", [](const Parameters& p) { return std::make_unique<SGD>(p, SGDOptions(0.1)); }},
      {"SGD with momentum",
       [](const Parameters& p) {
         return std::make_unique<SGD>(
             p, SGDOptions(0.1).momentum(0.9).weight_decay(1e-2).nesterov(true));
       }},
      {"Adam",
       [](const Parameters& p) {
         return std::make_unique<Adam>(p, AdamOptions(1e-2).weight_decay(1e-2).amsgrad(true));
       }},
      {"AdamW", [](const Parameters& p) { return std::make_unique<AdamW>(p, AdamWOptions(1e-2)); }},
      {"RMSprop",
       [](const Parameters& p) {
         return std::make_unique<RMSprop>(p, RMSpropOptions(1e-2).momentum(0.5).centered(true));
       }},
      {"Adagrad",
       [](const Parameters& p) { return std::make_unique<Adagrad>(p, AdagradOptions(1e-2)); }},
  };
}

DistributedDataParallelOptions small_buckets(bool views = true) {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = 0.001;  // Several buckets, each of several parameters.
  options.first_bucket_mb = 0.0005;
  options.gradient_as_bucket_view = views;
  return options;
}

// Steps [first, last) of a training.
void train(Model& model, int rank, int first, int last, const std::function<void()>& step,
           const std::function<void()>& zero_grad) {
  for (int at = first; at < last; ++at) {
    zero_grad();
    loss_of(model.forward(input_of(rank, at))).backward();
    step();
  }
}

void train(Model& model, int rank, int first, int last, torch::optim::Optimizer& optimizer) {
  train(
      model, rank, first, last, [&] { optimizer.step(); }, [&] { model.zero_grad(); });
}

void train(Model& model, int rank, int first, int last, ZeroRedundancyOptimizer& optimizer) {
  train(
      model, rank, first, last, [&] { optimizer.step(); }, [&] { optimizer.zero_grad(); });
}

// An optimizer over a model's parameters, divided or as it is.
class EitherWay {
 public:
  template <typename M>
  EitherWay(torch::optim::Optimizer& plain, DistributedDataParallel<M>& model, bool divided)
      : plain_(plain), zero_grad_([&model] { model.zero_grad(); }) {
    if (divided) zero_ = std::make_unique<ZeroRedundancyOptimizer>(plain, model);
  }
  void zero_grad() { zero_ ? zero_->zero_grad() : zero_grad_(); }
  void step() {
    if (zero_) {
      zero_->step();
    } else {
      plain_.step();
    }
  }
  ZeroRedundancyOptimizer* zero() { return zero_.get(); }

 private:
  torch::optim::Optimizer& plain_;
  std::function<void()> zero_grad_;
  std::unique_ptr<ZeroRedundancyOptimizer> zero_;
};

TEST(Zero, IsTheOptimizerBitForBitFromTheFirstStepOn) {
  for (const std::vector<int>& nodes : std::vector<std::vector<int>>{{1}, {2}, {4}, {2, 1}}) {
    for (const OptimizerCase& kind : optimizers()) {
      for (const auto& widths : {kUneven, kLarge}) {
        run_ranks(nodes, [&](const GroupPtr& group) {
          const auto expected = make_mlp(3, widths);
          const auto plain = kind.make(expected->parameters());
          Model reference(expected, group, small_buckets());
          const auto module = make_mlp(3, widths);
          const auto inner = kind.make(module->parameters());
          Model model(module, group, small_buckets());
          ZeroRedundancyOptimizer zero(*inner, model, {.overlap_with_forward = widths == kLarge});
          for (int step = 0; step < 5; ++step) {
            train(reference, group->rank(), step, step + 1, *plain);
            train(model, group->rank(), step, step + 1, zero);
            zero.wait();
            ASSERT_EQ(bytes_of(*module) == bytes_of(*expected), true)
                << kind.name << ", step " << step << ", " << group->size() << " ranks";
          }
        });
      }
    }
  }
}

TEST(Zero, GradientsMayBeCopiesAndGroupsMayDiffer) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto make = [](const std::shared_ptr<Mlp>& module) {
      const auto all = module->parameters();
      using torch::optim::OptimizerParamGroup;
      std::vector<OptimizerParamGroup> groups;
      groups.emplace_back(Parameters(all.begin(), all.begin() + 3));
      groups.emplace_back(Parameters(all.begin() + 3, all.end()),
                          std::make_unique<torch::optim::AdamOptions>(0.05));
      return torch::optim::Adam(groups, torch::optim::AdamOptions(0.01));
    };
    const auto expected = make_mlp(3, kUneven);
    auto plain = make(expected);
    Model reference(expected, group, small_buckets(false));
    const auto module = make_mlp(3, kUneven);
    auto inner = make(module);
    Model model(module, group, small_buckets(false));
    ZeroRedundancyOptimizer zero(inner, model);
    for (int step = 0; step < 4; ++step) {
      // A schedule, set where it always was.
      for (auto* adam : {&plain, &inner}) {
        static_cast<torch::optim::AdamOptions&>(adam->param_groups()[1].options())
            .lr(0.05 / (1 + step));
      }
      train(reference, group->rank(), step, step + 1, plain);
      train(model, group->rank(), step, step + 1, zero);
    }
    EXPECT_EQ(bytes_of(*module) == bytes_of(*expected), true);
  });
}

TEST(Zero, GradientsAccumulateUnderNoSync) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto run = [&group](bool divided) {
      const auto module = make_mlp(3, kUneven);
      torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.01));
      Model model(module, group, small_buckets());
      EitherWay optimizer(adam, model, divided);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        {
          const auto apart = model.no_sync();
          loss_of(model.forward(input_of(group->rank(), 10 * step))).backward();
        }
        loss_of(model.forward(input_of(group->rank(), 10 * step + 1))).backward();
        optimizer.step();
      }
      return bytes_of(*module);
    };
    EXPECT_EQ(run(true) == run(false), true);
    // Twice reduced is a mistake that would give wrong numbers.
    const auto module = make_mlp(3, kUneven);
    torch::optim::SGD sgd(module->parameters(), 0.1);
    Model model(module, group);
    ZeroRedundancyOptimizer zero(sgd, model);
    loss_of(model.forward(input_of(group->rank()))).backward();
    loss_of(model.forward(input_of(group->rank()))).backward();
    EXPECT_THAT(error_of([&] { zero.step(); }), HasSubstr("no_sync()"));
    zero.zero_grad();
    loss_of(model.forward(input_of(group->rank()))).backward();
    zero.step();
  });
}

// Uses its second half now and then.
struct Halves : torch::nn::Module {
  Halves() : first(torch::nn::Linear(6, 5)), second(torch::nn::Linear(6, 5)) {
    register_module("first", first);
    register_module("second", second);
    fill(*this, 5);
  }
  at::Tensor forward(const at::Tensor& x, bool both) {
    return both ? first(x) + second(x) : first(x);
  }
  torch::nn::Linear first, second;
};

// Whether the optimizer is divided must not show. The last rank has less input than the others.
void expect_same_in_mixed_precision(const GroupPtr& group, const OptimizerCase& kind,
                                    const MixedPrecision& mixed, bool views) {
  const auto run = [&](bool divided) {
    const auto module = make_mlp(3, kLarge);
    const auto inner = kind.make(module->parameters());
    DistributedDataParallelOptions options = small_buckets(views);
    options.mixed_precision = mixed;
    Model model(module, group, options);
    EitherWay optimizer(*inner, model, divided);
    const int rank = group->rank();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      {
        const auto apart = model.no_sync();
        loss_of(model.forward(input_of(rank, 10 * step))).backward();
      }
      loss_of(model.forward(input_of(rank, 10 * step + 1))).backward();
      optimizer.step();
    }
    auto join = model.join();
    for (int step = 0; step < (rank + 1 == group->size() ? 1 : 3); ++step) {
      optimizer.zero_grad();
      loss_of(model.forward(input_of(rank, step))).backward();
      optimizer.step();
    }
    EXPECT_EQ(module->parameters()[0].scalar_type(), at::kFloat);
    return bytes_of(*module);
  };
  EXPECT_EQ(run(true) == run(false), true)
      << kind.name << ", " << group->size() << " ranks, views " << views << ", low gradients "
      << mixed.keep_low_precision_grads << ", in bfloat16 "
      << (mixed.reduce_dtype == at::kBFloat16);
}

TEST(Zero, IsTheOptimizerBitForBitInMixedPrecision) {
  for (const int world : {1, 2, 3}) {
    for (const bool views : {true, false}) {
      for (const at::ScalarType reduce : {at::kBFloat16, at::kFloat}) {
        // One rank alone reduces nothing without the division, so it does not round sums either.
        if (world == 1 && reduce != at::kFloat) continue;
        for (const bool keep_low : {true, false}) {
          MixedPrecision mixed;
          mixed.param_dtype = at::kBFloat16;
          mixed.reduce_dtype = reduce;
          mixed.keep_low_precision_grads = keep_low;
          run_ranks({world}, [&](const GroupPtr& group) {
            for (const OptimizerCase& kind : optimizers()) {
              expect_same_in_mixed_precision(group, kind, mixed, views);
            }
          });
        }
      }
    }
  }
}

TEST(Zero, UnusedParametersStayAsTheyAre) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto run = [&group](bool divided) {
      const auto module = std::make_shared<Halves>();
      torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.01));
      DistributedDataParallelOptions options = small_buckets();
      options.find_unused_parameters = true;
      DistributedDataParallel<Halves> model(module, group, options);
      EitherWay optimizer(adam, model, divided);
      for (int step = 0; step < 6; ++step) {
        optimizer.zero_grad();
        // In step 2 one rank alone uses it, in steps 0 and 4 nobody does.
        const bool both = step % 2 == 1 || (step == 2 && group->rank() == 1);
        loss_of(model.forward(input_of(group->rank(), step), both)).backward();
        optimizer.step();
      }
      return bytes_of(*module);
    };
    EXPECT_EQ(run(true) == run(false), true);
  });
}

// Bytes of the tensors that the optimizer keeps.
std::size_t state_bytes(torch::optim::Adam& adam) {
  std::size_t bytes = 0;
  for (const auto& [key, state] : adam.state()) {
    const auto& of = static_cast<const torch::optim::AdamParamState&>(*state);
    bytes += of.exp_avg().nbytes() + of.exp_avg_sq().nbytes();
  }
  return bytes;
}

TEST(Zero, StateIsDividedByTheNumberOfRanks) {
  for (const int world : {1, 2, 4}) {
    run_ranks({world}, [world](const GroupPtr& group) {
      const auto module = make_mlp(3, {64, 512, 96, 4});
      torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.01));
      Model model(module, group);
      ZeroRedundancyOptimizer zero(adam, model);
      zero.zero_grad();
      model.forward(torch::ones({2, 64})).sum().backward();
      zero.step();
      std::size_t all = 0;
      for (const at::Tensor& parameter : module->parameters()) all += parameter.nbytes();
      const double share = static_cast<double>(state_bytes(adam)) / (2.0 * double(all));
      EXPECT_NEAR(share, 1.0 / world, 0.01);
      EXPECT_NEAR(static_cast<double>(zero.elements() * 4) / double(all), 1.0 / world, 0.01);
    });
  }
}

TEST(Zero, ClipsByTheNormOfAllParts) {
  for (const double norm_type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    run_ranks({3}, [norm_type](const GroupPtr& group) {
      const auto run = [&](bool divided, double& norm) {
        const auto module = make_mlp(3, kLarge);
        torch::optim::SGD sgd(module->parameters(), 0.1);
        Model model(module, group, small_buckets());
        std::unique_ptr<ZeroRedundancyOptimizer> zero;
        if (divided) zero = std::make_unique<ZeroRedundancyOptimizer>(sgd, model);
        loss_of(model.forward(input_of(group->rank()))).backward();
        norm = divided ? zero->clip_grad_norm_(0.01, norm_type)
                       : clip_grad_norm_(module->parameters(), 0.01, norm_type);
        if (zero) {
          zero->step();
        } else {
          sgd.step();
        }
        return torch::nn::utils::parameters_to_vector(module->parameters()).detach();
      };
      double of_parts = 0;
      double of_all = 0;
      const at::Tensor parts = run(true, of_parts);
      const at::Tensor all = run(false, of_all);
      EXPECT_NEAR(of_parts, of_all, 1e-12 * of_all);
      EXPECT_GT(of_all, 0.01) << "else nothing is clipped";
      EXPECT_TRUE(torch::allclose(parts, all, 1e-6, 1e-7));
    });
  }
}

TEST(Zero, RanksWithoutInputUpdateTheirPart) {
  run_ranks({3}, [](const GroupPtr& group) {
    const auto run = [&](bool divided) {
      const auto module = make_mlp(3, kUneven);
      torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.01));
      Model model(module, group, small_buckets());
      EitherWay optimizer(adam, model, divided);
      {
        auto join = model.join();
        const int batches = 2 + 2 * group->rank();
        for (int step = 0; step < batches; ++step) {
          optimizer.zero_grad();
          loss_of(model.forward(input_of(group->rank(), step))).backward();
          optimizer.step();
        }
      }
      return bytes_of(*module);
    };
    EXPECT_EQ(run(true) == run(false), true);
  });
}

// What a training has after `steps`, saved and loaded in between at other numbers of ranks, with
// and without the division.
struct Resumption {
  int ranks;
  bool divided;
  int until;
};

std::string resumed(const OptimizerCase& kind, const std::vector<Resumption>& parts) {
  const TempDir folder;
  std::string bytes;
  int done = 0;
  for (const Resumption& part : parts) {
    run_ranks({part.ranks}, [&](const GroupPtr& group) {
      const auto module = make_mlp(static_cast<std::uint64_t>(3 + done), kLarge);
      const auto optimizer = kind.make(module->parameters());
      Model model(module, group, small_buckets());
      std::unique_ptr<ZeroRedundancyOptimizer> zero;
      if (part.divided) zero = std::make_unique<ZeroRedundancyOptimizer>(*optimizer, model);
      CheckpointOptions options;
      options.directory = (folder.path() / "run").string();
      Checkpointer checkpointer(options, group);
      checkpointer.add_module("model", *module);
      if (zero) {
        checkpointer.add_optimizer("optimizer", *zero, *module);
      } else {
        checkpointer.add_optimizer("optimizer", *optimizer, *module);
      }
      ASSERT_TRUE(checkpointer.prepare());
      const auto loaded = checkpointer.load_latest();
      ASSERT_TRUE(loaded) << loaded.error().message;
      ASSERT_EQ(loaded->step, done == 0 ? -1 : done);
      // All ranks have the same input, so their number does not matter.
      if (zero) {
        train(model, 0, done, part.until, *zero);
      } else {
        train(model, 0, done, part.until, *optimizer);
      }
      ASSERT_TRUE(checkpointer.save(part.until));
      ASSERT_TRUE(checkpointer.wait());
      if (group->rank() == 0) bytes = bytes_of(*module);
    });
    done = part.until;
  }
  return bytes;
}

TEST(Zero, CheckpointsAreThoseOfTheOptimizerAloneOnAnyNumberOfRanks) {
  for (const OptimizerCase& kind : optimizers()) {
    const std::string expected = resumed(kind, {{2, false, 6}});
    EXPECT_EQ(resumed(kind, {{2, true, 6}}) == expected, true) << kind.name;
    EXPECT_EQ(resumed(kind, {{2, true, 3}, {2, true, 6}}) == expected, true) << kind.name;
    EXPECT_EQ(resumed(kind, {{2, true, 2}, {4, true, 4}, {2, true, 6}}) == expected, true)
        << kind.name;
    EXPECT_EQ(resumed(kind, {{2, true, 2}, {1, false, 4}, {4, true, 6}}) == expected, true)
        << kind.name;
  }
}

// Channels-last parameters lie in memory in another order than they are written in.
TEST(Zero, PartsOfParametersThatAreNotRowMajor) {
  const auto run = [](bool divided, bool stop) {
    std::string bytes;
    const TempDir folder;
    for (int part = stop ? 0 : 1; part < 2; ++part) {
      run_ranks({2}, [&](const GroupPtr& group) {
        const auto module = std::make_shared<ConvNet>(false);
        fill(*module, 9);
        for (at::Tensor& parameter : module->parameters()) {
          if (parameter.dim() == 4)
            parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
        }
        torch::optim::Adam adam(module->parameters(), torch::optim::AdamOptions(0.01));
        DistributedDataParallel<ConvNet> model(module, group, small_buckets());
        EitherWay optimizer(adam, model, divided);
        CheckpointOptions options;
        options.directory = (folder.path() / "run").string();
        Checkpointer checkpointer(options, group);
        checkpointer.add_module("model", *module);
        if (ZeroRedundancyOptimizer* zero = optimizer.zero()) {
          checkpointer.add_optimizer("optimizer", *zero, *module);
        } else {
          checkpointer.add_optimizer("optimizer", adam, *module);
        }
        ASSERT_TRUE(checkpointer.prepare());
        ASSERT_TRUE(checkpointer.load_latest());
        for (int step = stop && part == 1 ? 2 : 0; step < 2 + 2 * part; ++step) {
          optimizer.zero_grad();
          const at::Tensor images =
              random_tensor({3, 1, 28, 28}, static_cast<std::uint64_t>(10 * step + group->rank()));
          model.forward(images).pow(2).sum().backward();
          optimizer.step();
        }
        ASSERT_TRUE(checkpointer.save(2 + 2 * part));
        ASSERT_TRUE(checkpointer.wait());
        if (group->rank() == 0) bytes = bytes_of(*module);
      });
    }
    return bytes;
  };
  const std::string expected = run(false, false);
  EXPECT_EQ(run(true, false) == expected, true);
  EXPECT_EQ(run(true, true) == expected, true);
}

struct Embedded : torch::nn::Module {
  Embedded()
      : table(torch::nn::EmbeddingOptions(8, 4).sparse(true)), last(torch::nn::Linear(4, 2)) {
    register_module("table", table);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& rows) { return last(table(rows)); }
  torch::nn::Embedding table;
  torch::nn::Linear last;
};

TEST(Zero, WhatCannotBeDividedIsNamed) {
  run_ranks({1}, [](const GroupPtr& group) {
    const auto refuses = [&group](const std::function<void(Model&, Mlp&)>& make) {
      const auto module = make_mlp(3);
      Model model(module, group);
      return error_of([&] { make(model, *module); });
    };
    EXPECT_THAT(refuses([](Model& model, Mlp& module) {
                  torch::optim::LBFGS lbfgs(module.parameters());
                  ZeroRedundancyOptimizer zero(lbfgs, model);
                }),
                HasSubstr("LBFGS"));
    EXPECT_THAT(refuses([](Model& model, Mlp& module) {
                  torch::optim::Adam adam(module.parameters());
                  model.zero_grad();
                  loss_of(model.forward(input_of(0))).backward();
                  adam.step();
                  ZeroRedundancyOptimizer zero(adam, model);
                }),
                HasSubstr("before the first one"));
    EXPECT_THAT(refuses([](Model& model, Mlp& module) {
                  loss_of(model.forward(input_of(0))).backward();
                  torch::optim::SGD sgd(module.parameters(), 0.1);
                  ZeroRedundancyOptimizer zero(sgd, model);
                }),
                HasSubstr("before the first backward"));
    EXPECT_THAT(refuses([](Model& model, Mlp& /*module*/) {
                  torch::optim::SGD sgd({torch::zeros({3, 2}).requires_grad_()}, 0.1);
                  ZeroRedundancyOptimizer zero(sgd, model);
                }),
                HasSubstr("float32 [3, 2]"));
    EXPECT_THAT(refuses([](Model& model, Mlp& module) {
                  torch::optim::SGD sgd(module.parameters(), 0.1);
                  ZeroRedundancyOptimizer first(sgd, model);
                  torch::optim::SGD other(module.parameters(), 0.1);
                  ZeroRedundancyOptimizer second(other, model);
                }),
                HasSubstr("communication hook zero"));
    EXPECT_THAT(refuses([](Model& model, Mlp& module) {
                  torch::optim::SGD sgd(module.parameters(), 0.1);
                  { ZeroRedundancyOptimizer zero(sgd, model); }
                  loss_of(model.forward(input_of(0))).backward();
                }),
                HasSubstr("ZeroRedundancyOptimizer is gone"));
    const auto sparse = std::make_shared<Embedded>();
    torch::optim::SGD sgd(sparse->parameters(), 0.1);
    DistributedDataParallel<Embedded> model(sparse, group);
    EXPECT_THAT(error_of([&] { ZeroRedundancyOptimizer zero(sgd, model); }),
                HasSubstr("table.weight"));
  });
}

}  // namespace
}  // namespace ddp::test
