// ddp::Trainer against the loop that it replaces; evaluation, limits and stopping.
#include "worker/ddp/trainer/trainer.h"

#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/torch/trainer_fixture.h"
#include "worker/data/sampler.h"
#include "worker/ddp/averaging/clip_grad.h"
#include "worker/ddp/trainer/early_stopping.h"

namespace ddp::test {
namespace {

using namespace trainer_sample;
using testing::ElementsAre;
using testing::HasSubstr;

// Joint batches of all ranks in one process, every update written out.
std::shared_ptr<Net> train_alone(int world, std::int64_t accumulate, bool drop_last) {
  auto net = std::make_shared<Net>();
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  const TensorDataset all(data());
  DistributedSampler sampler({.dataset_size = kSamples,
                              .batch_size = kBatch * world * accumulate,
                              .seed = kSeed,
                              .drop_last = drop_last});
  TrainingPlace place;
  for (; place.epoch < 3; ++place.epoch) {
    sampler.set_epoch(place.epoch);
    while (sampler.steps_left() > 0) {
      const Batch batch = all.get_batch(sampler.next_batch());
      optimizer.zero_grad();
      loss_of(net->inner->forward(batch[0]), batch[1]).backward();
      clip_grad_norm_(net->parameters(), 0.05);
      for (auto& group : optimizer.param_groups()) {
        group.options().set_lr(0.02 * factor_at(place));
      }
      optimizer.step();
      ++place.step;
    }
  }
  return net;
}

TEST(Trainer, TrainsAsTheLoopThatItStandsFor) {
  for (const int world : {1, 2, 4}) {
    for (const std::int64_t accumulate : {1, 3}) {
      for (const bool drop_last : {true, false}) {
        const auto expected = train_alone(world, accumulate, drop_last)->parameters();
        for (const char* strategy : {"ddp", "ddp_step", "zero1"}) {
          run_ranks({world}, [&](const GroupPtr& group) {
            TrainerOptions options = options_for(group, strategy);
            options.accumulate_grad_batches = accumulate;
            options.gradient_clip_val = 0.05;
            Trainer trainer(options);
            const auto net = std::make_shared<Net>();
            trainer.fit(net, loader(kSamples, drop_last));
            EXPECT_EQ(trainer.place().epoch, 3);
            const auto actual = net->parameters();
            for (std::size_t i = 0; i < actual.size(); ++i) {
              EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-3, 1e-5))
                  << world << " ranks, " << strategy << ", " << accumulate << " batches an update"
                  << (drop_last ? "" : ", with the rest") << ": "
                  << (actual[i] - expected[i]).abs().max().item<float>();
            }
          });
        }
      }
    }
  }
}

TEST(Trainer, CountsTheBatchesOfAnEpoch) {
  run_ranks({1}, [](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    options.accumulate_grad_batches = 2;
    options.limit_train_batches = 4;
    options.max_epochs = 2;
    const auto net = std::make_shared<Net>();
    Trainer(options).fit(net, loader());
    EXPECT_THAT(net->indices, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  });
}

TEST(Trainer, DataParallelInOneProcessIsTheSameTraining) {
  run_ranks({1}, [](const GroupPtr& group) {
    const auto train = [&](const char* strategy, int devices) {
      TrainerOptions options = options_for(group, strategy);
      options.devices = devices;
      options.accelerator = "cpu";
      Trainer trainer(options);
      auto net = std::make_shared<Net>();
      trainer.fit(net, loader());
      EXPECT_GT(trainer.metrics().at("train_loss_epoch"), 0);
      return std::pair(net->parameters(), trainer.metrics().at("train_loss_epoch"));
    };
    const auto [expected, loss] = train("single", 1);
    const auto [actual, same_loss] = train("dp", 2);
    EXPECT_NEAR(loss, same_loss, 1e-5);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-3, 1e-5));
    }
  });
}

// Of all samples, each counted once.
TEST(Trainer, EvaluatesEverySampleOnce) {
  const auto reference = std::make_shared<Net>();
  const Batch all = data();
  const at::NoGradGuard no_grad;
  const double expected = loss_of(reference->inner->forward(all[0]), all[1]).item<double>();
  const at::Tensor rows = reference->inner->forward(all[0]);
  for (const int world : {1, 2, 4}) {
    run_ranks({world}, [&](const GroupPtr& group) {
      Trainer trainer(options_for(group));
      const auto net = std::make_shared<Net>();
      EXPECT_NEAR(trainer.validate(net, loader()).at("val_loss"), expected, 1e-6) << world;
      EXPECT_NEAR(trainer.test(net, loader()).at("val_loss"), expected, 1e-6) << world;
      EXPECT_TRUE(net->is_training());
      EXPECT_TRUE(torch::allclose(trainer.predict(net, loader()), rows)) << world;
    });
  }
}

TEST(Trainer, LimitsAndIntervals) {
  run_ranks({1}, [](const GroupPtr& group) {
    // An epoch is 16 batches, the last of one sample.
    struct Case {
      Amount limit, interval;
      std::int64_t steps;
      int validations;
    };
    for (const Case& each :
         {Case{1.0, 1.0, 48, 3}, Case{1, 1.0, 3, 3}, Case{0.5, 1.0, 24, 3}, Case{1.0, 0.25, 48, 12},
          Case{1.0, 5, 48, 9}, Case{7, 3, 21, 6}, Case{1.0, 0, 48, 0}}) {
      TrainerOptions options = options_for(group);
      options.limit_train_batches = each.limit;
      options.val_check_interval = each.interval;
      options.limit_val_batches = 1;
      Trainer trainer(options);
      const auto net = std::make_shared<Net>();
      trainer.fit(net, loader(), loader());
      EXPECT_EQ(trainer.place().step, each.steps) << each.limit.text();
      EXPECT_EQ(trainer.total_steps(), each.steps);
      EXPECT_EQ(net->validations, each.validations) << each.interval.text();
      if (each.validations > 0) {
        EXPECT_EQ(trainer.metrics().at("val_rows"), 3);
      }
    }
    TrainerOptions options = options_for(group);
    options.max_steps = 20;
    options.check_val_every_n_epoch = 2;
    Trainer trainer(options);
    const auto net = std::make_shared<Net>();
    trainer.fit(net, loader(), loader());
    EXPECT_EQ(trainer.place().step, 20);
    EXPECT_EQ(trainer.place().epoch, 1);
    EXPECT_EQ(net->validations, 0);
  });
}

// Logs what it is told to.
struct Scripted final : Net {
  explicit Scripted(std::vector<double> values) : script(std::move(values)) {}
  void validation_step(const Batch& /*batch*/, std::int64_t index) override {
    if (index == 0) log("score", script.at(next++));
  }
  std::vector<double> script;
  std::size_t next = 0;
};

TEST(Trainer, StopsEarly) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    EarlyStoppingOptions options;
    std::vector<double> script;
    std::int64_t epochs;
    std::string reason;
  };
  for (const Case& each : std::vector<Case>{
           {{.monitor = "score", .patience = 1}, {3, 2, 4, 2.5, 1}, 3, "not been better than 2"},
           {{.monitor = "score", .patience = 2}, {3, 2, 4, 1, 5, 6}, 6, "not been better than 1"},
           {{.monitor = "score", .mode = "max", .patience = 0}, {1, 2, 2}, 3, "not been better"},
           {{.monitor = "score", .min_delta = 0.5, .patience = 0}, {3, 2.6}, 2, "not been better"},
           {{.monitor = "score"}, {3, kNan}, 2, "score is nan"},
           {{.monitor = "score", .stopping_threshold = 1.5}, {3, 1}, 2, "is better than 1.5"},
           {{.monitor = "score", .divergence_threshold = 5}, {3, 6}, 2, "is worse than 5"},
           {{.monitor = "score"}, {5, 4, 3, 2, 1, 0}, 6, ""}}) {
    run_ranks({2}, [&](const GroupPtr& group) {
      TrainerOptions options = options_for(group);
      options.max_epochs = 6;
      const auto stopping = std::make_shared<EarlyStopping>(each.options);
      options.callbacks = {stopping};
      Trainer trainer(options);
      trainer.fit(std::make_shared<Scripted>(each.script), loader(), loader(4));
      EXPECT_EQ(trainer.place().epoch, each.epochs) << each.reason;
      EXPECT_THAT(trainer.stop_reason(), HasSubstr(each.reason));
      EXPECT_EQ(stopping->reason(), trainer.stop_reason());
      EarlyStopping resumed(each.options);
      resumed.load_state(stopping->state());
      EXPECT_EQ(resumed.reason(), stopping->reason());
    });
  }
}

TEST(Trainer, AMonitorWaitsForTheFirstValidation) {
  run_ranks({2}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    options.max_epochs = 6;
    options.check_val_every_n_epoch = 2;
    const auto stopping =
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "score", .patience = 1});
    options.callbacks = {stopping};
    Trainer trainer(options);
    trainer.fit(std::make_shared<Scripted>(std::vector<double>{3, 4, 1}), loader(), loader(4));
    EXPECT_EQ(trainer.place().epoch, 4) << trainer.stop_reason();
  });
}

// As one freezes batch norms.
TEST(Trainer, AValidationLeavesFrozenPartsFrozen) {
  struct Freezes final : Callback {
    std::string name() const override { return "Freezes"; }
    void on_fit_start(Trainer& /*trainer*/, TrainerModule& module) override {
      dynamic_cast<Net&>(module).inner->eval();
    }
  };
  run_ranks({1}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    options.callbacks = {std::make_shared<Freezes>()};
    const auto net = std::make_shared<Net>();
    Trainer(options).fit(net, loader(), loader());
    EXPECT_GT(net->validations, 0);
    EXPECT_FALSE(net->inner->is_training());
    EXPECT_TRUE(net->is_training());
  });
}

// Of 13 samples one is left for the second step. The ranks without compute with one that counts
// already.
TEST(Trainer, ASampleOfAnotherRankIsNotLogged) {
  struct Logs final : Net {
    explicit Logs(Rank of) : rank(of) {}
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      log("seen", rank > 0 && index == 1 ? 100.0 : 1.0,
          {.batch_size = static_cast<double>(batch[0].size(0))});
      return Net::training_step(batch, index);
    }
    Rank rank;
  };
  run_ranks({4}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    options.max_epochs = 1;
    Trainer trainer(options);
    trainer.fit(std::make_shared<Logs>(group->rank()), loader(13));
    EXPECT_EQ(trainer.metrics().at("seen_epoch"), 1);
  });
}

TEST(Trainer, ComputesInBFloat16AndUpdatesInFull) {
  struct Typed final : Net {
    at::Tensor training_step(const Batch& batch, std::int64_t index) override {
      seen = inner->forward(batch[0]).scalar_type();
      return Net::training_step(batch, index);
    }
    at::ScalarType seen = at::kFloat;
  };
  run_ranks({2}, [](const GroupPtr& group) {
    for (const auto& [precision, computes, keeps] :
         {std::tuple("bf16-mixed", at::kBFloat16, at::kFloat),
          std::tuple("64-true", at::kDouble, at::kDouble),
          std::tuple("bf16-true", at::kBFloat16, at::kBFloat16)}) {
      TrainerOptions options = options_for(group);
      options.precision = precision;
      options.max_steps = 2;
      Trainer trainer(options);
      const auto net = std::make_shared<Typed>();
      trainer.fit(net, loader(), loader());
      EXPECT_EQ(net->seen, computes) << precision;
      EXPECT_EQ(net->parameters()[0].scalar_type(), keeps) << precision;
    }
  });
}

TEST(Trainer, Zero1InMixedPrecisionIsTheSameTraining) {
  run_ranks({2}, [](const GroupPtr& group) {
    const auto train = [&group](const char* strategy) {
      TrainerOptions options = options_for(group, strategy);
      options.precision = "bf16-mixed";
      const auto net = std::make_shared<Net>();
      Trainer(options).fit(net, loader());
      return bytes_of(*net);
    };
    EXPECT_EQ(train("zero1") == train("ddp"), true);
  });
}

}  // namespace
}  // namespace ddp::test
