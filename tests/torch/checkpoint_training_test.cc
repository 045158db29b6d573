#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_model.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/ddp/averaging/distributed_data_parallel.h"

// Training on several ranks, saved in the background after every step: stopping after any step and
// resuming in new objects gives the bytes of an uninterrupted run. (Ranks are threads here, which
// share the default generator, so nothing draws from it; tests/process tests dropout.)
namespace ddp {
namespace {

using test::ConvNet;
using test::GroupPtr;
using test::run_ranks;
using test::TempDir;

constexpr int kSteps = 4;

struct Recipe {
  const char* name;
  bool adam = false;
  bool schedule = false;
  bool mixed_precision = false;  // Without batch norm, which has no bfloat16 here.
};

const Recipe kRecipes[] = {
    {.name = "BatchNormMomentum"},
    {.name = "AdamAndSchedule", .adam = true, .schedule = true},
    {.name = "MixedPrecision", .mixed_precision = true},
};

at::Tensor images_of(Rank rank, int number) {
  return test::random_tensor({2, 1, 28, 28}, static_cast<std::uint64_t>(1000 + 50 * number + rank));
}

// All that a process of the training has.
class Training {
 public:
  Training(const GroupPtr& group, const Recipe& recipe, const std::string& folder)
      : group_(group), recipe_(recipe), checkpointer_(options_of(folder), group) {
    test::fill(*module_, 7);
    DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    if (recipe.mixed_precision) options.mixed_precision.param_dtype = torch::kBFloat16;
    ddp_ = std::make_unique<DistributedDataParallel<ConvNet>>(module_, group, options);
    if (recipe.adam) {
      optimizer_ = std::make_unique<torch::optim::Adam>(
          module_->parameters(), torch::optim::AdamOptions(0.01).weight_decay(0.01));
    } else {
      optimizer_ = std::make_unique<torch::optim::SGD>(
          module_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
    }
    checkpointer_.add_module("model", *module_);
    checkpointer_.add_optimizer("optimizer", *optimizer_, *module_);
    checkpointer_.add_value(
        "ticks", [this] { return nlohmann::json(ticks_); },
        [this](const nlohmann::json& saved) { ticks_ = saved.get<int>(); });
  }

  void tick() {
    ddp_->zero_grad();
    const at::Tensor images = images_of(group_->rank(), ticks_);
    ++ticks_;
    loss_of(images).backward();
    if (recipe_.schedule) {
      for (auto& group : optimizer_->param_groups()) group.options().set_lr(0.01 / ticks_);
    }
    optimizer_->step();
  }
  void tick_until(int end) {
    while (ticks_ < end) tick();
  }

  // Within a window buffers are not broadcast, and what is loaded has rank 0's.
  std::string state() const {
    std::string text;
    if (group_->rank() == 0) text = weights_sha256(*module_);
    for (const auto& parameter : module_->parameters()) text += test::bytes_of_tensor(parameter);
    for (const auto& tensor :
         make_optimizer_state("o", *optimizer_, *module_)->snapshot("").tensors) {
      text += tensor.name + test::bytes_of_tensor(tensor.tensor);
    }
    return text;
  }
  Checkpointer& checkpointer() { return checkpointer_; }

 private:
  static CheckpointOptions options_of(const std::string& folder) {
    CheckpointOptions options;
    options.directory = folder;
    return options;
  }
  at::Tensor loss_of(const at::Tensor& images) { return (*ddp_)(images).square().mean(); }

  GroupPtr group_;
  const Recipe recipe_;
  std::shared_ptr<ConvNet> module_ = std::make_shared<ConvNet>(!recipe_.mixed_precision);
  std::unique_ptr<DistributedDataParallel<ConvNet>> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int ticks_ = 0;
  Checkpointer checkpointer_;
};

class CheckpointTrainingTest
    : public ::testing::TestWithParam<std::tuple<Recipe, std::vector<int>>> {
 protected:
  std::string folder(int tick) const { return folder_.path() / std::to_string(tick); }
  TempDir folder_;
};

TEST_P(CheckpointTrainingTest, AnyStopGivesTheBytesOfARunThatDidNotStop) {
  const auto& [tested, nodes] = GetParam();
  run_ranks(nodes, [&, recipe = tested](const GroupPtr& group) {
    Training alone(group, recipe, folder(0));
    alone.tick_until(kSteps);
    const std::string expected = alone.state();
    // A run that saves is not disturbed by that, and what it saves is not by its going on.
    for (int stop = 1; stop < kSteps; ++stop) {
      Training first(group, recipe, folder(stop));
      ASSERT_TRUE(first.checkpointer().prepare());
      first.tick_until(stop);
      const auto saved = first.checkpointer().save(stop);
      ASSERT_TRUE(saved) << saved.error().message;
      first.tick_until(kSteps);
      ASSERT_TRUE(first.state() == expected) << "saved after " << stop;
      ASSERT_TRUE(first.checkpointer().wait());
      Training second(group, recipe, folder(stop));
      second.tick_until(stop % 3);  // What it has of its own must go.
      const auto loaded = second.checkpointer().load_latest();
      ASSERT_TRUE(loaded) << loaded.error().message;
      ASSERT_EQ(loaded->step, stop);
      second.tick_until(kSteps);
      ASSERT_TRUE(second.state() == expected) << "stopped after " << stop;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointTrainingTest,
                         ::testing::Combine(::testing::ValuesIn(kRecipes),
                                            ::testing::Values(std::vector<int>{1},
                                                              std::vector<int>{2},
                                                              std::vector<int>{3, 1})),
                         [](const auto& test) {
                           int ranks = 0;
                           for (const int node : std::get<1>(test.param)) ranks += node;
                           return std::get<0>(test.param).name + std::to_string(ranks);
                         });

}  // namespace
}  // namespace ddp
