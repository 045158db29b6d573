#include "worker/ddp/averaging/distributed_optimizer.h"

#include <cstddef>
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
#include "worker/ddp/averaging/gradient_reducer.h"
#include "worker/ddp/hooks/default_hooks.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;

TEST(ReduceGradients, GivesTheAverageInTreeOrderToTheBit) {
  run_ranks({2, 3}, [](const GroupPtr& group) {
    auto module = make_mlp(7);
    for (int step = 0; step < 2; ++step) {
      loss_of(module->forward(input_of(group->rank(), step))).backward();
    }
    GradientReducer(group).reduce(module->parameters());
    expect_average_gradients(*module, 5, {0, 1});
  });
}

TEST(ReduceGradients, UndefinedCountsAsZeroAndStaysSoWhereNobodyHasOne) {
  run_ranks({3}, [](const GroupPtr& group) {
    const int rank = group->rank();
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 6; ++i) parameters.push_back(torch::zeros({2, 2}).requires_grad_(i != 4));
    parameters[1] = torch::zeros({3}, torch::kDouble).requires_grad_();
    parameters[2] = torch::zeros({4, 2}).t().requires_grad_();
    parameters[5] = parameters[0];  // Twice.
    GradientReducer reducer(group);
    for (int step = 0; step < 2; ++step) {
      if (rank == 1) parameters[0].mutable_grad() = torch::full({2, 2}, 3.0F + float(step));
      parameters[1].mutable_grad() = torch::full({3}, rank, torch::kDouble);
      parameters[2].mutable_grad() = torch::arange(8, torch::kFloat).view({2, 4}) * rank;
      reducer.reduce(parameters);
      EXPECT_TRUE(torch::allclose(parameters[0].grad(), torch::full({2, 2}, (3.0 + step) / 3)));
      EXPECT_TRUE(torch::equal(parameters[1].grad(), torch::ones({3}, torch::kDouble)));
      EXPECT_TRUE(torch::equal(parameters[2].grad(), torch::arange(8, torch::kFloat).view({2, 4})));
      EXPECT_FALSE(parameters[3].grad().defined());
      EXPECT_FALSE(parameters[4].grad().defined());
      parameters[0].mutable_grad().reset();
    }
    std::size_t reduced = 0;
    for (const auto& bucket : reducer.bucket_layout()) reduced += bucket.size();
    EXPECT_EQ(reduced, 4U) << "each once, frozen ones not at all";
    // The same list, with one parameter frozen on the way.
    parameters[1].requires_grad_(false);
    parameters[1].mutable_grad() = torch::full({3}, rank, torch::kDouble);
    reducer.reduce(parameters);
    EXPECT_TRUE(torch::equal(parameters[1].grad(), torch::full({3}, rank, torch::kDouble)));
    parameters[1].requires_grad_(true);
    // Another list with the same object.
    parameters[2].requires_grad_(false);
    parameters[3].mutable_grad() = torch::ones({2, 2});
    reducer.reduce({parameters[3], parameters[2], parameters[1]});
    EXPECT_TRUE(torch::allclose(parameters[3].grad(), torch::ones({2, 2})));
  });
}

TEST(ReduceGradients, SparseOnesBecomeDense) {
  run_ranks({3}, [](const GroupPtr& group) {
    at::Tensor table = torch::zeros({5, 2}).requires_grad_();
    GradientReducer reducer(group);
    for (int step = 0; step < 2; ++step) {
      table.mutable_grad().reset();
      if (group->rank() < 2) {
        // Row 3 twice, which is to be added up; row `rank` once.
        const at::Tensor rows = torch::tensor({{3L, 3L, static_cast<long>(group->rank())}});
        table.mutable_grad() = torch::sparse_coo_tensor(rows, torch::ones({3, 2}), {5, 2});
      }
      reducer.reduce({table});
      const at::Tensor expected = torch::tensor({1.0, 1.0, 0.0, 4.0, 0.0}) / 3;
      ASSERT_EQ(table.grad().layout(), at::kStrided);
      EXPECT_TRUE(torch::allclose(table.grad(), expected.to(torch::kFloat).unsqueeze(1)));
    }
  });
}

TEST(ReduceGradients, AGradientThatCannotBeReducedIsAnErrorEverywhere) {
  run_ranks({2}, [](const GroupPtr& group) {
    at::Tensor parameter = torch::zeros({2, 2}).requires_grad_();
    parameter.mutable_grad() = torch::zeros({2, 2});
    if (group->rank() == 0) {
      parameter.mutable_grad() = parameter.grad().to(torch::kDouble);
      EXPECT_THROW(GradientReducer(group).reduce({parameter}), std::invalid_argument);
    } else {
      EXPECT_THAT(
          error_of([&] { GradientReducer(group).reduce({parameter}); }),
          HasSubstr("rank 0 aborted the group: the gradient of parameter 0 (float32 [2, 2]) "
                    "is float64 [2, 2]"));
    }
  });
}

// Equal sizes in all would pass unseen.
TEST(ReduceGradients, DifferentParametersAreNamedAndLeaveTheGroupUsable) {
  run_ranks({2}, [](const GroupPtr& group) {
    const int rank = group->rank();
    GradientReducer reducer(group);
    reducer.set_naming([](const at::Tensor&, std::size_t index) {
      return "part" + std::to_string(index) + ".weight";
    });
    const at::Tensor first = torch::zeros({2 + rank}).requires_grad_();
    const at::Tensor second = torch::zeros({3 - rank}).requires_grad_();
    EXPECT_THAT(error_of([&] { reducer.reduce({first, second}); }), HasSubstr("part0.weight"));
    reducer.reduce({torch::zeros({2}).requires_grad_()});
  });
}

TEST(BroadcastMasterParam, VerifiesThenCopies) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto rank = static_cast<std::uint64_t>(group->rank());
    auto module = make_mlp(7 + rank);
    broadcast_master_param(*module, *group);
    EXPECT_EQ(bytes_of(*module), bytes_of(*make_mlp(7)));
    auto different = make_mlp(7, {6, 5 + group->rank(), 4});
    EXPECT_THAT(error_of([&] { broadcast_master_param(*different, *group); }),
                HasSubstr("layer0.weight"));
  });
}

// With a communication hook, or without.
void expect_both_modes_to_agree(Future (*hook)(ProcessGroup&, GradBucket&)) {
  run_ranks({3}, [&](const GroupPtr& group) {
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
    auto hooked = make_mlp(7);
    DistributedDataParallel model(hooked, group);
    if (hook != nullptr) model.register_comm_hook(group, hook);
    torch::optim::SGD plain(hooked->parameters(), options);

    auto stepped = make_mlp(7 + static_cast<std::uint64_t>(group->rank()));
    broadcast_master_param(*stepped, *group);
    torch::optim::SGD sgd({torch::optim::OptimizerParamGroup(stepped->layers[0]->parameters()),
                           torch::optim::OptimizerParamGroup(stepped->layers[1]->parameters())},
                          options);
    DistributedOptimizer optimizer(sgd, group);
    if (hook != nullptr) optimizer.register_comm_hook(group, hook);
    for (int step = 0; step < 10; ++step) {
      model.zero_grad(/*set_to_none=*/step % 2 == 0);
      loss_of(model(input_of(group->rank(), step))).backward();
      plain.step();
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      loss_of(stepped->forward(input_of(group->rank(), step))).backward();
      optimizer.step();
    }
    EXPECT_EQ(bytes_of(*hooked), bytes_of(*stepped));
    EXPECT_NE(bytes_of(*hooked), bytes_of(*make_mlp(7)));
  });
}

TEST(DistributedOptimizer, EndsWithTheBytesOfTheOtherMode) { expect_both_modes_to_agree(nullptr); }

TEST(DistributedOptimizer, WithTheFp16HookToo) { expect_both_modes_to_agree(fp16_compress_hook); }

}  // namespace
}  // namespace ddp::test
