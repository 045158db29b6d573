#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_model.h"

// Stopping after a step and resuming in new objects gives the bytes of an uninterrupted run.
namespace ddp {
namespace {

using namespace torch::optim;
using test::Net;
using test::TempDir;
using test::train_step;
using OptimizerPtr = std::unique_ptr<Optimizer>;

struct Kind {
  const char* name;
  OptimizerPtr (*make)(Net& net);
  OptimizerPtr (*make_other)(Net& net);  // The same type with other hyper-parameters.
};

// Two groups: the convolution with its own options, and all else.
template <typename Type, typename Options>
OptimizerPtr make_groups(Net& net, const Options& convolution, const Options& others) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(net.conv->parameters(), std::make_unique<Options>(convolution));
  std::vector<torch::Tensor> rest = net.norm->parameters();
  for (const auto& tensor : net.first->parameters()) rest.push_back(tensor);
  for (const auto& tensor : net.last->parameters()) rest.push_back(tensor);
  groups.emplace_back(rest, std::make_unique<Options>(others));
  return std::make_unique<Type>(groups, others);
}

const Kind kKinds[] = {
    {"SgdMomentum",
     [](Net& net) {
       return make_groups<SGD>(net, SGDOptions(0.1 / 3).momentum(0.5),
                               SGDOptions(0.07).momentum(0.9).nesterov(true).weight_decay(1e-4));
     },
     [](Net& net) { return make_groups<SGD>(net, SGDOptions(1), SGDOptions(2)); }},
    {"SgdPlain", [](Net& net) { return make_groups<SGD>(net, SGDOptions(0.1), SGDOptions(0.2)); },
     [](Net& net) {
       return make_groups<SGD>(net, SGDOptions(1).momentum(0.5), SGDOptions(2).momentum(0.5));
     }},
    {"Adam",
     [](Net& net) {
       return make_groups<Adam>(net, AdamOptions(1e-3 / 7).betas({0.8, 0.95}),
                                AdamOptions(2e-3).amsgrad(true).weight_decay(0.01).eps(3e-9));
     },
     [](Net& net) { return make_groups<Adam>(net, AdamOptions(9), AdamOptions(9)); }},
    {"AdamW",
     [](Net& net) {
       return make_groups<AdamW>(net, AdamWOptions(1e-3 / 7).amsgrad(true),
                                 AdamWOptions(2e-3).weight_decay(0.03));
     },
     [](Net& net) { return make_groups<AdamW>(net, AdamWOptions(9), AdamWOptions(9)); }},
    {"Adagrad",
     [](Net& net) {
       return make_groups<Adagrad>(net, AdagradOptions(0.01).lr_decay(0.1),
                                   AdagradOptions(0.03).weight_decay(0.01));
     },
     [](Net& net) { return make_groups<Adagrad>(net, AdagradOptions(9), AdagradOptions(9)); }},
    {"RmsProp",
     [](Net& net) {
       return make_groups<RMSprop>(net, RMSpropOptions(0.001).centered(true).momentum(0.3),
                                   RMSpropOptions(0.003).alpha(0.9));
     },
     [](Net& net) { return make_groups<RMSprop>(net, RMSpropOptions(9), RMSpropOptions(9)); }},
};

class ResumeTest : public ::testing::TestWithParam<Kind> {
 protected:
  // A checkpointer for the pair, in the test's folder.
  std::unique_ptr<Checkpointer> checkpointer(Net& net, Optimizer& optimizer) {
    auto result = std::make_unique<Checkpointer>(
        CheckpointOptions{(folder_.path() / "ckpt").string(), 3}, group_);
    result->add_module("net", net);
    result->add_optimizer("main", optimizer, net);
    result->add_rng();
    EXPECT_TRUE(result->prepare());
    return result;
  }

  // State after `steps` steps without a stop.
  std::string undisturbed(std::int64_t steps) {
    torch::manual_seed(1);
    Net net;
    const OptimizerPtr optimizer = GetParam().make(net);
    for (std::int64_t step = 0; step < steps; ++step) train_step(net, *optimizer, step);
    return test::state_bytes(net, *optimizer);
  }

  TempDir folder_;
  std::shared_ptr<ProcessGroup> group_ = ProcessGroup::from_environment();
};

TEST_P(ResumeTest, GivesTheBytesOfARunThatDidNotStop) {
  const std::string expected = undisturbed(10);
  for (const std::int64_t stop : {0, 1, 5, 9}) {
    {
      torch::manual_seed(1);
      Net net;
      const OptimizerPtr optimizer = GetParam().make(net);
      auto saver = checkpointer(net, *optimizer);
      for (std::int64_t step = 0; step < stop; ++step) train_step(net, *optimizer, step);
      auto saved = saver->save(stop);
      ASSERT_TRUE(saved) << saved.error().message;
      // Saving changes nothing: this run goes on as if it had not.
      for (std::int64_t step = stop; step < 10; ++step) train_step(net, *optimizer, step);
      EXPECT_EQ(test::state_bytes(net, *optimizer), expected);
      // Nor do these steps change what is being written.
      ASSERT_TRUE(saver->wait());
    }
    torch::manual_seed(777);
    Net net;
    const OptimizerPtr optimizer = GetParam().make_other(net);
    // State that the checkpoint does not have must go: the optimizer has been used already.
    if (stop != 5) train_step(net, *optimizer, 0);
    auto loader = checkpointer(net, *optimizer);
    auto loaded = loader->load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    ASSERT_EQ(loaded->step, stop);
    EXPECT_TRUE(loaded->skipped.empty());
    EXPECT_TRUE(loaded->notes.empty());
    for (std::int64_t step = stop; step < 10; ++step) train_step(net, *optimizer, step);
    EXPECT_EQ(test::state_bytes(net, *optimizer), expected) << "stopped after " << stop;
  }
}

TEST_P(ResumeTest, HyperParametersComeBackExactly) {
  Net net;
  const OptimizerPtr optimizer = GetParam().make(net);
  ASSERT_TRUE(checkpointer(net, *optimizer)->save(1));
  Net other;
  const OptimizerPtr other_optimizer = GetParam().make_other(other);
  const auto groups_of = [](Net& of, Optimizer& which) {
    return make_optimizer_state("o", which, of)->snapshot("").description.at("groups");
  };
  ASSERT_NE(groups_of(net, *optimizer), groups_of(other, *other_optimizer));
  ASSERT_TRUE(checkpointer(other, *other_optimizer)->load_latest());
  EXPECT_EQ(groups_of(net, *optimizer), groups_of(other, *other_optimizer));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ResumeTest, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace ddp
