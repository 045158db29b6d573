// Updates within backward against a step after it, bit for bit.
#include "worker/ddp/averaging/optimizer_in_backward.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

namespace ddp::test {
namespace {

using testing::HasSubstr;
using ReplicatedMlp = DistributedDataParallel<Mlp>;

const std::vector<std::int64_t> kOddWidths = {6, 37, 11, 29, 4};

std::unique_ptr<torch::optim::Optimizer> make_adam(const std::vector<at::Tensor>& parameters) {
  // Two groups, in an order that has nothing to do with the buckets'.
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::vector<at::Tensor> odd;
  std::vector<at::Tensor> even;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    (i % 2 == 0 ? even : odd).push_back(parameters[i]);
  groups.emplace_back(odd, std::make_unique<torch::optim::AdamOptions>(0.02));
  groups.emplace_back(even, std::make_unique<torch::optim::AdamOptions>(0.005));
  return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.01));
}

std::unique_ptr<torch::optim::Optimizer> make_sgd(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}

at::Tensor loss_of(ReplicatedMlp& model, const GroupPtr& group, int step) {
  const at::Tensor input =
      random_tensor({5, 6}, static_cast<std::uint64_t>(100 * (group->rank() + 1) + step));
  return torch::mse_loss(model(input), input.narrow(1, 0, 4).sin());
}

std::string train_and_hash(
    const GroupPtr& group, bool in_backward, const DistributedDataParallelOptions& options,
    const std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>&
        make) {
  auto mlp = std::make_shared<Mlp>(kOddWidths);
  fill(*mlp, 3);
  ReplicatedMlp model(mlp, group, options);
  const auto optimizer = make(mlp->parameters());
  std::unique_ptr<OptimizerInBackward> within;
  if (in_backward) within = std::make_unique<OptimizerInBackward>(*optimizer, model);
  for (int step = 0; step < 6; ++step) {
    model.zero_grad();
    for (auto& of : optimizer->param_groups()) of.options().set_lr(of.options().get_lr() * 0.9);
    if (step == 3) {
      const NoSync no_sync = model.no_sync();
      loss_of(model, group, 90).backward();
    }
    loss_of(model, group, step).backward();
    if (!in_backward) optimizer->step();
  }
  return bytes_of(*mlp);
}

TEST(OptimizerInBackward, IsAStepBehindBackwardBitForBit) {
  for (const bool views : {false, true}) {
    for (const double cap : {0.0005, 25.0}) {
      DistributedDataParallelOptions options;
      options.gradient_as_bucket_view = views;
      options.bucket_cap_mb = cap;
      options.first_bucket_mb = cap;
      for (const std::vector<int>& nodes : {std::vector{1}, {2}, {2, 2}}) {
        run_ranks(nodes, [&](const GroupPtr& group) {
          EXPECT_EQ(train_and_hash(group, true, options, make_adam),
                    train_and_hash(group, false, options, make_adam))
              << group->size() << " ranks, views " << views << ", cap " << cap;
          EXPECT_EQ(train_and_hash(group, true, options, make_sgd),
                    train_and_hash(group, false, options, make_sgd));
        });
      }
    }
  }
}

// Where each gradient comes only when all that was sent before it is done, every bucket but the
// last is updated before the next one is sent.
TEST(OptimizerInBackward, UpdatesWhileBackwardGoesOn) {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = 0.0005;
  options.first_bucket_mb = 0.0005;
  run_ranks({1}, [&](const GroupPtr& group) {
    auto mlp = std::make_shared<Mlp>(kOddWidths);
    for (const at::Tensor& parameter : mlp->parameters()) {
      parameter.register_hook([group](const at::Tensor& gradient) {
        group->barrier()->wait();  // Behind what was sent.
        return gradient;
      });
    }
    ReplicatedMlp model(mlp, group, options);
    const auto sgd = make_sgd(mlp->parameters());
    const OptimizerInBackward within(*sgd, model);
    loss_of(model, group, 0).backward();
    const std::size_t before = within.early_updates();
    loss_of(model, group, 1).backward();
    const std::size_t buckets = model.bucket_layout().size();
    EXPECT_GT(buckets, 2U);
    EXPECT_GE(within.early_updates() - before, buckets - 2);
  });
}

TEST(OptimizerInBackward, NamesWhatItCannotUpdate) {
  run_ranks({1}, [](const GroupPtr& group) {
    auto mlp = std::make_shared<Mlp>(kOddWidths);
    const auto complaint = [&](torch::optim::Optimizer& optimizer,
                               const DistributedDataParallelOptions& options = {}) -> std::string {
      ReplicatedMlp model(mlp, group, options);
      try {
        const OptimizerInBackward within(optimizer, model);
      } catch (const std::invalid_argument& wrong) {
        return wrong.what();
      }
      return "accepted";
    };
    const auto sgd = make_sgd(mlp->parameters());
    EXPECT_EQ(complaint(*sgd), "accepted");
    torch::optim::LBFGS lbfgs(mlp->parameters());
    EXPECT_THAT(complaint(lbfgs), HasSubstr("LBFGS"));
    const auto other = make_sgd({torch::ones({2, 3}, torch::requires_grad())});
    EXPECT_THAT(complaint(*other), HasSubstr("[2, 3]"));
    DistributedDataParallelOptions mixed;
    mixed.mixed_precision.param_dtype = at::kBFloat16;
    EXPECT_THAT(complaint(*sgd, mixed), HasSubstr("mixed_precision"));
    DistributedDataParallelOptions delayed;
    delayed.delay_all_reduce_named_params = {"layer3.weight"};
    delayed.param_to_hook_all_reduce = "layer0.weight";
    EXPECT_THAT(complaint(*sgd, delayed), HasSubstr("layer3.weight is sparse or delayed"));
    DistributedDataParallelOptions unused;
    unused.find_unused_parameters = true;
    EXPECT_THAT(complaint(*sgd, unused), HasSubstr("find_unused_parameters"));
    DistributedDataParallelOptions fixed;
    fixed.static_graph = true;
    EXPECT_THAT(complaint(*sgd, fixed), HasSubstr("static_graph"));
    ReplicatedMlp model(mlp, group);
    const OptimizerInBackward first(*sgd, model);
    EXPECT_THROW(OptimizerInBackward(*sgd, model), std::logic_error);
  });
}

}  // namespace
}  // namespace ddp::test
