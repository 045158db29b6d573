// ZeroRedundancyOptimizer against the optimizer that it divides, bit for bit, and what it promises
// about memory, uneven input and errors.
#include <cstddef>
#include <limits>
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
#include "tests/torch/zero_fixture.h"
#include "worker/ddp/averaging/clip_grad.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

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

// Autograd may leave a gradient with other strides than its parameter has.
TEST(Zero, ClipsGradientsOfAnotherLayout) {
  struct Row : torch::nn::Module {
    Row() : weight(register_parameter("weight", random_tensor({1, 40}, 3))) {}
    at::Tensor forward(const at::Tensor& input) { return input.mv(weight.t().squeeze(1)); }
    at::Tensor weight;
  };
  run_ranks({2}, [](const GroupPtr& group) {
    const auto run = [&](bool divided) {
      const auto module = std::make_shared<Row>();
      torch::optim::SGD sgd(module->parameters(), 0.1);
      DistributedDataParallel<Row> model(module, group);
      std::unique_ptr<ZeroRedundancyOptimizer> zero;
      if (divided) zero = std::make_unique<ZeroRedundancyOptimizer>(sgd, model);
      model.forward(random_tensor({8, 40}, static_cast<std::uint64_t>(5 + group->rank())))
          .square()
          .mean()
          .backward();
      if (zero) {
        zero->clip_grad_norm_(0.01);
        zero->step();
      } else {
        clip_grad_norm_(module->parameters(), 0.01);
        sgd.step();
      }
      return module->weight.detach().clone();
    };
    EXPECT_TRUE(torch::allclose(run(true), run(false), 1e-6, 1e-8));
  });
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

// What no rank uses stays as it is, although weight decay would change it.
TEST(Zero, RanksWithoutInputLeaveUnusedParametersAsTheyAre) {
  run_ranks({3}, [](const GroupPtr& group) {
    const auto run = [&](bool divided) {
      const auto module = std::make_shared<Halves>();
      torch::optim::Adam adam(module->parameters(),
                              torch::optim::AdamOptions(0.01).weight_decay(0.1));
      DistributedDataParallelOptions options = small_buckets();
      options.static_graph = true;
      DistributedDataParallel<Halves> model(module, group, options);
      EitherWay optimizer(adam, model, divided);
      {
        const auto join = model.join();
        for (int step = 0; step < 2 * group->rank(); ++step) {
          optimizer.zero_grad();
          loss_of(model.forward(input_of(group->rank(), step), false)).backward();
          optimizer.step();
        }
      }
      return bytes_of(*module);
    };
    EXPECT_EQ(run(true) == run(false), true);
  });
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
