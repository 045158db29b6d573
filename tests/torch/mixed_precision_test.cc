// Computing in one type, reducing in another, stepping in the parameters' own.
#include <cstddef>
#include <functional>
#include <map>
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
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

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

// Two layers, with a look at the gradient between them: then the second layer has its gradients.
struct Watched : torch::nn::Module {
  Watched() : first(torch::nn::Linear(6, 5)), second(torch::nn::Linear(5, 4)) {
    register_module("first", first);
    register_module("second", second);
    scale = register_parameter("scale", torch::ones({5}));
    fill(*this, 7);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (in_forward) in_forward();
    const at::Tensor between = first(x).tanh() * scale;
    if (between.requires_grad()) {
      between.register_hook([this](const at::Tensor& gradient) {
        if (in_backward) in_backward();
        return gradient;
      });
    }
    return second(between);
  }
  torch::nn::Linear first, second;
  at::Tensor scale;  // The graph has it itself, where a layer's weight is there transposed.
  std::function<void()> in_forward, in_backward;
};

DistributedDataParallelOptions in_bfloat16() {
  DistributedDataParallelOptions options;
  options.mixed_precision.param_dtype = torch::kBFloat16;
  return options;
}

void expect_full(const Watched& module, const std::string& before) {
  EXPECT_EQ(bytes_of(module), before);
  for (const at::Tensor& parameter : module.parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
    const at::Tensor& gradient = parameter.grad();
    EXPECT_TRUE(!gradient.defined() || gradient.scalar_type() == torch::kFloat);
  }
}

void fail_on_purpose() { throw std::domain_error("on purpose"); }

// As when a peer is lost: an elastic training makes the next wrapper of the same module.
TEST(MixedPrecision, AWrapperWhoseBackwardFailedLeavesFullParametersBehind) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto module = std::make_shared<Watched>();
    const std::string before = bytes_of(*module);
    {
      DistributedDataParallel model(module, group, in_bfloat16());
      group->barrier()->wait();  // The others must be through with making theirs.
      module->in_backward = [&group] { group->abort("a peer is lost"); };
      EXPECT_THAT(error_of([&] { loss_of(model(input_of(group->rank()))).backward(); }),
                  testing::HasSubstr("a peer is lost"));
    }
    expect_full(*module, before);
  });
}

// Parameters are full again when the ranks wait for each other.
TEST(MixedPrecision, AWrapperWhoseReductionFailedLeavesFullGradientsBehind) {
  run_ranks({1}, [](const GroupPtr& group) {
    const auto module = std::make_shared<Watched>();
    const std::string before = bytes_of(*module);
    {
      DistributedDataParallel model(module, group, in_bfloat16());
      model.register_comm_hook(std::make_shared<int>(0), [](int&, GradBucket& bucket) {
        return Future(bucket.buffer()).then([](at::Tensor average) {
          fail_on_purpose();
          return average;
        });
      });
      EXPECT_THAT(error_of([&] { loss_of(model(input_of(0))).backward(); }),
                  testing::HasSubstr("on purpose"));
    }
    expect_full(*module, before);
  });
}

TEST(MixedPrecision, AForwardThatFailsLeavesFullParametersBehind) {
  run_ranks({1}, [](const GroupPtr& group) {
    const auto module = std::make_shared<Watched>();
    const std::string before = bytes_of(*module);
    DistributedDataParallel model(module, group, in_bfloat16());
    module->in_forward = fail_on_purpose;
    EXPECT_THAT(error_of([&] { model(input_of(0)); }), testing::HasSubstr("on purpose"));
    expect_full(*module, before);
  });
}

// And one without gradients, such as a validation, ends what a backward that failed has begun.
TEST(MixedPrecision, GoesOnBehindABackwardThatFailed) {
  for (const bool synchronises : {true, false}) {
    run_ranks({1}, [&](const GroupPtr& group) {
      const auto module = std::make_shared<Watched>();
      const std::string before = bytes_of(*module);
      DistributedDataParallel model(module, group, in_bfloat16());
      const auto backward = [&] {
        const auto guard =
            synchronises ? nullptr : std::unique_ptr<NoSync>(new NoSync(model.core().reducer()));
        loss_of(model(input_of(0))).backward();
      };
      backward();
      const at::Tensor expected = module->first->weight.grad().clone();
      module->in_backward = fail_on_purpose;
      EXPECT_THAT(error_of(backward), testing::HasSubstr("on purpose"));
      {
        const torch::NoGradGuard no_grad;
        model(input_of(0));
      }
      EXPECT_EQ(bytes_of(*module), before);
      module->in_backward = nullptr;
      model.zero_grad();
      backward();
      expect_full(*module, before);
      EXPECT_TRUE(same_bytes(module->first->weight.grad(), expected));
    });
  }
}

TEST(MixedPrecision, AForwardWithoutGradientsLeavesAPendingBackwardItsParameters) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto module = std::make_shared<Watched>();
    const std::string before = bytes_of(*module);
    DistributedDataParallel model(module, group, in_bfloat16());
    loss_of(model(input_of(group->rank()))).backward();
    const at::Tensor expected = module->first->weight.grad().clone();
    model.zero_grad();
    const at::Tensor loss = loss_of(model(input_of(group->rank())));
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(model(input_of(5)).scalar_type(), torch::kBFloat16);
    }
    loss.backward();
    expect_full(*module, before);
    EXPECT_TRUE(same_bytes(module->first->weight.grad(), expected));
  });
}

}  // namespace
}  // namespace ddp::test
