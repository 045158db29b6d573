#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/checkpoint_model.h"
#include "tests/torch/hooks/hook_training.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/hooks/power_sgd_hook.h"
#include "worker/ddp/state/checkpointer.h"

// The state of hooks through checkpoints: a resumed run equals an uninterrupted one.
namespace ddp {
namespace {

using nlohmann::json;
using test::formula;
using test::GroupPtr;
using test::HookPtr;
using test::HookTraining;
using test::run_ranks;
using test::TempDir;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// All that a process would have.
struct Process {
  Process(const GroupPtr& group, const std::string& hook_text, const std::string& path)
      : hook(make_comm_hook_from_text(hook_text, group)),
        averager(make_model_averager_from_text(hook_text, group)),
        training(group, hook, {}, {2, 4}),
        checkpointer(test::at_once(path), group) {
    checkpointer.add_module("model", *training.model);
    checkpointer.add_optimizer("sgd", training.sgd, *training.model);
    checkpointer.add_comm_hook("hook", *hook);
    checkpointer.add_value(
        "steps", [this] { return json(training.steps); },
        [this](const json& value) { training.steps = value.get<std::int64_t>(); });
    if (averager) {
      // Averaging leaves each rank its own momentum, and a checkpoint has that of rank 0.
      auto& options = training.sgd.param_groups().front().options();
      static_cast<torch::optim::SGDOptions&>(options).momentum(0);
      training.after_step = [this] { averager->average_parameters(training.sgd); };
      checkpointer.add_value(
          "averager", [this] { return averager->state(); },
          [this](const json& value) { averager->load_state(value); });
    }
  }
  // Weights, optimizer and hook; not the default generator, which the ranks of a test share.
  std::string state() const {
    auto& optimizer = const_cast<torch::optim::SGD&>(training.sgd);
    std::string text = weights_sha256(*training.model);
    const auto of_optimizer = make_optimizer_state("o", optimizer, *training.model)->snapshot("");
    for (const StateTensor& item : of_optimizer.tensors) {
      text += item.name + test::bytes_of_tensor(item.tensor);
    }
    const CommHookState of_hook = hook->state();
    text += of_hook.values.dump();
    for (const auto* tensors : {&of_hook.replicated, &of_hook.per_rank}) {
      for (const auto& [name, tensor] : *tensors) text += name + test::bytes_of_tensor(tensor);
    }
    return text;
  }

  HookPtr hook;
  std::shared_ptr<ModelAverager> averager;
  HookTraining training;
  Checkpointer checkpointer;
};

class HookStateTest : public ::testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "ckpt").string(); }
  TempDir folder_;
};

class HookResumeTest : public HookStateTest, public ::testing::WithParamInterface<const char*> {};

// Ten steps, and five with five more in new objects. (With noop replicas drift apart, and a
// checkpoint has but one.)
TEST_P(HookResumeTest, GivesTheBytesOfARunThatDidNotStop) {
  run_ranks({2, 1}, [this](const GroupPtr& group) {
    Process undisturbed(group, GetParam(), path());
    undisturbed.training.steps_until(10);
    {
      Process first(group, GetParam(), path());
      ASSERT_TRUE(first.checkpointer.prepare());
      first.training.steps_until(5);
      ASSERT_TRUE(!first.averager || first.averager->in_agreement());
      const auto saved = first.checkpointer.save(5);
      ASSERT_TRUE(saved) << saved.error().message;
      // Saving changes nothing.
      first.training.steps_until(10);
      EXPECT_TRUE(first.state() == undisturbed.state());
    }
    Process second(group, GetParam(), path());
    second.training.steps_until(3);  // Has state of its own, which must go.
    const auto loaded = second.checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    ASSERT_EQ(loaded->step, 5);
    EXPECT_TRUE(loaded->notes.empty());
    second.training.steps_until(10);
    EXPECT_TRUE(second.state() == undisturbed.state()) << "rank " << group->rank();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, HookResumeTest,
    ::testing::Values("allreduce", "fp16", "bf16", "powersgd:rank=1,start_iter=2",
                      "powersgd:rank=2,start_iter=7", "powersgd:rank=4,start_iter=2,min_rate=0.5",
                      "powersgd:rank=2,start_iter=2,warm_start=false",
                      "powersgd:start_iter=2,error_feedback=false",
                      "powersgd:start_iter=2,batch_same_shape=true",
                      "fp16+powersgd:rank=2,start_iter=2", "batched_powersgd:rank=2,start_iter=2",
                      "batched_powersgd:rank=1,start_iter=2,warm_start=false",
                      "quantize_per_channel", "post_localsgd:start_iter=2,period=2,subgroup_size=1",
                      "post_localsgd:start_iter=6,gradient_allreduce=false"),
    [](const auto& hook) {
      std::string name;
      for (const char c : std::string(hook.param)) {
        name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      }
      return name;
    });

TEST_F(HookStateTest, WhatIsOwedIsEachRanksOwnAndStaysInTheAverageOfAnotherWorld) {
  const std::string text = "powersgd:rank=1,start_iter=2";
  std::mutex mutex;
  std::map<std::string, at::Tensor> sums;
  std::map<std::string, std::string> first;
  run_ranks({4}, [&](const GroupPtr& group) {
    Process process(group, text, path());
    ASSERT_TRUE(process.checkpointer.prepare());
    process.training.steps_until(5);
    ASSERT_TRUE(process.checkpointer.save(5));
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : process.hook->state().per_rank) {
      EXPECT_EQ(name.rfind("error/", 0), 0U);
      at::Tensor& sum = sums[name];
      sum = sum.defined() ? sum + tensor : tensor;
      const std::string bytes = test::bytes_of_tensor(tensor);
      if (const auto [other, fresh] = first.emplace(name, bytes); !fresh) {
        EXPECT_NE(other->second, bytes) << name << " is the same on two ranks";
      }
    }
  });
  ASSERT_EQ(sums.size(), 3U);
  for (const int ranks : {2, 6}) {
    run_ranks({ranks}, [&](const GroupPtr& group) {
      Process process(group, text, path());
      const auto loaded = process.checkpointer.load_latest();
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_THAT(loaded->notes,
                  Contains(HasSubstr("per-rank state over the ranks that saved it")));
      const CommHookState state = process.hook->state();
      const std::lock_guard lock(mutex);
      for (const auto& [name, sum] : sums) {
        EXPECT_LE(test::distance(state.per_rank.at(name), sum / 4), 1e-6) << name;
      }
      EXPECT_EQ(state.replicated.count("q/0.weight"), 1U);
    });
  }
}

// A hook whose state is what the test says.
class StatedHook final : public CommHook {
 public:
  std::string name() const override { return kind; }
  Future run(GradBucket& bucket) override { return Future(bucket.buffer()); }
  CommHookState state() const override { return present; }
  void restore(const CommHookState& state) override {
    if (!refusal.empty()) throw std::invalid_argument(refusal);
    present = state;
  }
  std::string kind = "stated";
  std::string refusal;
  CommHookState present;
};

// One rank: saves `saved` as "hook", loads as `name` into `other`; gives the error.
std::string load_error(const std::string& path, StatedHook& saved, const std::string& name,
                       StatedHook& other) {
  std::string text = "loaded";
  run_ranks({1}, [&](const GroupPtr& group) {
    Checkpointer saver(test::at_once(path), group);
    saver.add_comm_hook("hook", saved);
    ASSERT_TRUE(saver.prepare());
    const auto done = saver.save(1);
    if (!done) {
      text = done.error().message;
      return;
    }
    Checkpointer loader({path, 3}, group);
    loader.add_comm_hook(name, other);
    if (const auto loaded = loader.load_latest(); !loaded) text = loaded.error().message;
  });
  return text;
}

TEST_F(HookStateTest, WhatDoesNotFitIsSaidAndChangesNothing) {
  StatedHook saved;
  saved.present.values = {{"a", 1}};
  saved.present.per_rank["error/x"] = torch::ones({2});
  StatedHook other;
  other.present.values = "untouched";
  EXPECT_THAT(load_error(path(), saved, "another", other),
              HasSubstr("the checkpoint has no communication hook \"another\""));
  other.kind = "different";
  EXPECT_THAT(load_error(path(), saved, "hook", other),
              HasSubstr("communication hook \"hook\" is stated, here it is different"));
  other.kind = "stated";
  other.refusal = "option a is 1, not 2";
  EXPECT_THAT(load_error(path(), saved, "hook", other),
              AllOf(HasSubstr("loading the communication hook \"hook\" failed"),
                    HasSubstr("option a is 1, not 2")));
  EXPECT_EQ(other.present.values, "untouched");
  other.refusal.clear();
  EXPECT_EQ(load_error(path(), saved, "hook", other), "loaded");
  EXPECT_EQ(other.present.values, saved.present.values);
  saved.present.values = json::binary({1, 2});
  EXPECT_THAT(load_error(path(), saved, "hook", other),
              HasSubstr("values of the communication hook \"hook\" cannot be stored"));
  saved.present.values = nullptr;
  saved.present.per_rank["error/x"] = torch::ones({2}, torch::kComplexFloat);
  EXPECT_THAT(load_error(path(), saved, "hook", other), HasSubstr("hook/hook/error/x"));
}

TEST_F(HookStateTest, WhatIsMissingOrHasNoMeanIsNamed) {
  const auto save = [this](const std::function<void(Rank, CommHookState&)>& fill) {
    run_ranks({2}, [&](const GroupPtr& group) {
      StatedHook hook;
      fill(group->rank(), hook.present);
      Checkpointer saver(test::at_once(path()), group);
      saver.add_comm_hook("h", hook);
      ASSERT_TRUE(saver.prepare());
      const auto saved = saver.save(1);
      ASSERT_TRUE(saved) << saved.error().message;
    });
  };
  const auto error_with = [this](int ranks) {
    std::mutex mutex;
    std::string text;
    run_ranks({ranks}, [&](const GroupPtr& group) {
      StatedHook hook;
      Checkpointer loader({path(), 3}, group);
      loader.add_comm_hook("h", hook);
      const auto loaded = loader.load_latest();
      const std::lock_guard lock(mutex);
      text = loaded ? "loaded" : loaded.error().message;
    });
    return text;
  };
  save([](Rank rank, CommHookState& state) {
    state.per_rank["error/x"] = torch::ones({2});
    if (rank == 0) state.per_rank["error/y"] = torch::ones({2});
  });
  EXPECT_THAT(error_with(2), HasSubstr("\"h\" lacks \"error/y\" of rank 1"));
  EXPECT_THAT(error_with(1), HasSubstr("\"h\" lacks \"error/y\" of rank 1"));
  save([](Rank rank, CommHookState& state) { state.per_rank["n"] = torch::ones({2 + rank}); });
  EXPECT_EQ(error_with(2), "loaded");
  EXPECT_THAT(error_with(3), AllOf(HasSubstr("\"n\" of the checkpoint's"), HasSubstr("on rank 1")));
  save([](Rank, CommHookState& state) { state.per_rank["n"] = torch::ones({2}, torch::kLong); });
  EXPECT_THAT(error_with(1), HasSubstr("there is no mean"));
}

TEST_F(HookStateTest, DamageIsPassedOverForTheCheckpointBefore) {
  run_ranks({2}, [this](const GroupPtr& group) {
    Process process(group, "powersgd:start_iter=2", path());
    ASSERT_TRUE(process.checkpointer.prepare());
    process.training.steps_until(4);
    ASSERT_TRUE(process.checkpointer.save(4));
    process.training.steps_until(6);
    const auto saved = process.checkpointer.save(6);
    ASSERT_TRUE(saved);
    if (group->rank() == 0) test::damage(saved->path + "/rank-00001.safetensors");
    const auto loaded = process.checkpointer.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->step, 4);
    EXPECT_THAT(loaded->skipped, Contains(HasSubstr("rank-00001.safetensors")));
    EXPECT_EQ(process.training.steps, 4);
  });
}

TEST_F(HookStateTest, AHookThatIsNotRegisteredIsNoted) {
  run_ranks({1}, [this](const GroupPtr& group) {
    Process process(group, "fp16", path());
    ASSERT_TRUE(process.checkpointer.prepare());
    ASSERT_TRUE(process.checkpointer.save(1));
    Checkpointer plain({path(), 3}, group);
    const auto loaded = plain.load_latest();
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_THAT(loaded->notes,
                Contains(HasSubstr("the communication hook \"hook\", which is not")));
    EXPECT_THROW(process.checkpointer.add_comm_hook("hook", *process.hook), std::invalid_argument);
    EXPECT_THROW(process.checkpointer.add_comm_hook("a/b", *process.hook), std::invalid_argument);
  });
}

TEST_F(HookStateTest, PowerSGDRefusesWhatItDidNotSave) {
  run_ranks({1}, [](const GroupPtr& group) {
    PowerSGDOptions options;
    options.start_powerSGD_iter = 2;
    PowerSGDState state(group, options);
    const CommHookState good = state.state();
    const auto error_of = [&](const std::function<void(CommHookState&)>& change) -> std::string {
      CommHookState changed = good;
      change(changed);
      try {
        state.restore(changed);
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "restored";
    };
    EXPECT_EQ(error_of([](CommHookState&) {}), "restored");
    EXPECT_THAT(error_of([](auto& s) { s.values = nullptr; }), HasSubstr("has no values"));
    EXPECT_THAT(error_of([](auto& s) { s.values.erase("options"); }), HasSubstr("has no options"));
    EXPECT_THAT(error_of([](auto& s) { s.values["options"]["matrix_approximation_rank"] = 2; }),
                HasSubstr("was saved with matrix_approximation_rank = 2, here it is 1"));
    EXPECT_THAT(error_of([](auto& s) { s.values["options"].erase("warm_start"); }),
                HasSubstr("no option warm_start"));
    EXPECT_THAT(error_of([](auto& s) { s.values.erase("iter"); }), HasSubstr("has no \"iter\""));
    EXPECT_THAT(error_of([](auto& s) { s.values["iter"] = -3; }), HasSubstr("not a count: -3"));
    EXPECT_THAT(error_of([](auto& s) { s.values["iter"] = "3"; }), HasSubstr("not a count: \"3\""));
    EXPECT_THAT(error_of([](auto& s) { s.per_rank["eror/x"] = torch::ones({2}); }),
                HasSubstr("unknown tensor \"eror/x\""));
    EXPECT_THAT(error_of([](auto& s) { s.replicated["q/x"] = torch::ones({2}, torch::kLong); }),
                HasSubstr("\"q/x\" that is not a floating-point tensor"));
    EXPECT_EQ(state.iter(), 0);
    // Of a parameter of another size: known when the parameter is.
    CommHookState other = good;
    other.values["iter"] = 5;
    other.per_rank["error/a"] = torch::ones({4, 4});
    state.restore(other);
    auto buckets = test::make_buckets({{"a", torch::zeros({16, 20})}}, {"a"}, {1}, *group);
    try {
      powerSGD_hook(state, buckets.front());
      FAIL() << "took the error of another parameter";
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("PowerSGD's error of a was kept as float32 [4, 4]"));
    }
  });
}

}  // namespace
}  // namespace ddp
