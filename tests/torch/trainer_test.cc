// ddp::Trainer against the loop that it stands for, and going on from its checkpoints.
#include "worker/ddp/trainer/trainer.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/temp_dir.h"
#include "tests/torch/models.h"
#include "tests/torch/rank_threads.h"
#include "worker/data/sampler.h"
#include "worker/ddp/clip_grad.h"
#include "worker/ddp/trainer/early_stopping.h"
#include "worker/ddp/trainer/learning_rate_monitor.h"
#include "worker/ddp/trainer/model_checkpoint.h"

namespace ddp::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSamples = 46;
constexpr std::int64_t kBatch = 3;
constexpr std::uint64_t kSeed = 5;

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();  // mse_loss knows no bfloat16.
}

// A sample is 6 numbers and what is to be computed of them.
Batch data(std::int64_t samples = kSamples, std::uint64_t seed = 1) {
  const at::Tensor input = random_tensor({samples, 6}, seed);
  return {input, input.narrow(1, 0, 4).sin()};
}

DataLoader loader(std::int64_t samples = kSamples, bool drop_last = false, std::uint64_t seed = 1) {
  return {.dataset = std::make_shared<TensorDataset>(data(samples, seed)),
          .batch_size = kBatch,
          .shuffle = true,
          .drop_last = drop_last,
          .seed = kSeed};
}

double factor_at(const TrainingPlace& place) {
  return 1.0 / (1.0 + 0.1 * static_cast<double>(place.step)) + static_cast<double>(place.epoch);
}

struct Net : TrainerModule {
  Net()
      : inner(
            register_module("inner", std::make_shared<Mlp>(std::vector<std::int64_t>{6, 17, 4}))) {
    fill(*this, 3);
  }
  at::Tensor training_step(const Batch& batch, std::int64_t index) override {
    indices.push_back(index);
    const at::Tensor loss = loss_of(inner->forward(batch[0]), batch[1]);
    log("train_loss", loss);
    return loss;
  }
  void validation_step(const Batch& batch, std::int64_t /*index*/) override {
    log("val_loss", loss_of(inner->forward(batch[0]), batch[1]));
    log("val_rows", static_cast<double>(batch[0].size(0)));
    ++validations;
  }
  at::Tensor predict_step(const Batch& batch, std::int64_t /*index*/) override {
    return inner->forward(batch[0]);
  }
  ConfiguredOptimizer configure_optimizers() override {
    return {std::make_unique<torch::optim::AdamW>(
                parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.1)),
            factor_at};
  }
  std::shared_ptr<TrainerModule> new_replica() const override { return std::make_shared<Net>(); }

  std::shared_ptr<Mlp> inner;
  int validations = 0;
  std::vector<std::int64_t> indices;
};

TrainerOptions options_for(const GroupPtr& group, const std::string& strategy = "ddp") {
  TrainerOptions options;
  options.group = group;
  options.strategy = strategy;
  options.max_epochs = 3;
  options.enable_progress_bar = false;
  options.log_every_n_steps = 2;
  return options;
}

// Joint batches of all ranks in one process, every update written out.
std::shared_ptr<Net> train_alone(int world, std::int64_t accumulate, bool drop_last) {
  auto net = std::make_shared<Net>();
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(0.02).weight_decay(0.1));
  const TensorDataset all(data());
  DistributedSampler sampler({.dataset_size = kSamples,
                              .batch_size = kBatch * world * accumulate,
                              .seed = kSeed,
                              .drop_last = drop_last,
                              .even = false});
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

// What a call says when it throws; empty if it does not.
std::string complaint(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// What a Trainer of one rank says; the group is released by it, so each has its own.
std::string complaint_of(
    const std::function<void(Trainer&)>& call,
    const std::function<void(TrainerOptions&)>& change = [](auto&) {}) {
  std::string text;
  run_ranks({1}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    change(options);
    Trainer trainer(options);
    text = complaint([&] { call(trainer); });
  });
  return text;
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

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Outcome {
  std::string bytes, metrics;
  MetricValues values;
  std::int64_t best_step = -1;
  std::optional<double> best;
};

// A training in two parts, of which the first ends after `first` updates; 0: in one.
Outcome train_in_parts(const GroupPtr& group, const std::string& strategy,
                       const std::filesystem::path& folder, std::int64_t first) {
  Outcome outcome;
  for (const std::int64_t until : {first, std::int64_t{-1}}) {
    if (until == 0) continue;
    TrainerOptions options = options_for(group, strategy);
    options.default_root_dir = folder;
    options.max_steps = until;
    options.val_check_interval = 0.5;
    options.checkpoint_every_n_steps = 1;
    const auto best = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.monitor = "val_loss", .save_top_k = 2});
    options.callbacks = {best,
                         std::make_shared<EarlyStopping>(
                             EarlyStoppingOptions{.monitor = "val_loss", .patience = 100}),
                         std::make_shared<LearningRateMonitor>()};
    Trainer trainer(options);
    const auto net = std::make_shared<Net>();
    trainer.fit(net, loader(), loader(20, false, 2));
    outcome.bytes = bytes_of(*net);
    outcome.values = trainer.metrics();
    outcome.best_step = best->best_step();
    outcome.best = best->best_model_score();
    if (group->rank() == 0) outcome.metrics = text_of(folder / "metrics.jsonl");
    group->barrier()->wait();
  }
  return outcome;
}

TEST(Trainer, GoesOnAfterAnyUpdateWithTheSameBytes) {
  for (const std::string strategy : {"ddp", "ddp_step", "zero1"}) {
    const TempDir whole_folder;
    // An epoch is 8 updates; 24 in all.
    for (const std::int64_t first : {1, 3, 4, 8, 15, 23, 24}) {
      const TempDir folder;
      run_ranks({2}, [&](const GroupPtr& group) {
        const Outcome whole =
            train_in_parts(group, strategy, whole_folder.path() / std::to_string(first), 0);
        const Outcome parts = train_in_parts(group, strategy, folder.path(), first);
        EXPECT_EQ(parts.bytes, whole.bytes) << strategy << ", after " << first;
        EXPECT_EQ(parts.metrics, whole.metrics) << strategy << ", after " << first;
        EXPECT_EQ(parts.values, whole.values);
        EXPECT_EQ(parts.best_step, whole.best_step);
        EXPECT_EQ(parts.best, whole.best);
        if (group->rank() == 0) {
          EXPECT_THAT(whole.metrics, HasSubstr(R"("step":24)"));
        }
      });
    }
  }
}

TEST(Trainer, TheBestAndTheLastModelCanBeTested) {
  const TempDir folder;
  run_ranks({2}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    options.default_root_dir = folder.path();
    // The first validation is the best.
    options.callbacks = {std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.monitor = "val_loss", .mode = "max"})};
    Trainer trainer(options);
    const auto net = std::make_shared<Net>();
    trainer.fit(net, loader(), loader(20, false, 2));
    const double last = trainer.metrics().at("val_loss");
    const auto other = std::make_shared<Net>();
    const double best = trainer.test(other, loader(20, false, 2), "best").at("val_loss");
    EXPECT_GT(best, last);
    EXPECT_NEAR(trainer.test(other, loader(20, false, 2), "last").at("val_loss"), last, 1e-9);
    EXPECT_EQ(bytes_of(*other), bytes_of(*net));
  });
}

// What a training that was killed has logged beyond its checkpoint comes again.
TEST(Trainer, TheLogGoesOnWhereTheTrainingDoes) {
  const TempDir folder;
  const std::filesystem::path path = folder.path() / "metrics.jsonl";
  const auto log_until = [](JsonLogger& logger, std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step <= last; ++step) {
      logger.log_metrics({.epoch = 0, .step = step}, {{"loss", 1.0 / static_cast<double>(step)}});
    }
  };
  {
    JsonLogger logger(path);
    logger.begin({});
    log_until(logger, 1, 5);
  }
  const std::string whole = text_of(path);
  std::ofstream(path, std::ios::app) << R"({"epoch":0,"st)";  // Killed in a line.
  JsonLogger logger(path);
  logger.begin({.epoch = 0, .step = 3});
  log_until(logger, 4, 5);
  EXPECT_EQ(text_of(path), whole);
  logger.begin({});
  EXPECT_EQ(text_of(path), "");
}

TEST(Trainer, AFolderOfAnotherModelIsNamed) {
  struct Wider final : Net {
    Wider() { inner->layers[0]->weight.set_data(at::zeros({17, 7})); }
  };
  const TempDir folder;
  const auto fit_in_folder = [&](const std::shared_ptr<TrainerModule>& net) {
    return complaint_of([&](Trainer& trainer) { trainer.fit(net, loader()); },
                        [&](TrainerOptions& options) {
                          options.default_root_dir = folder.path();
                          options.max_steps = 1;
                        });
  };
  EXPECT_EQ(fit_in_folder(std::make_shared<Net>()), "");
  EXPECT_THAT(fit_in_folder(std::make_shared<Wider>()),
              AllOf(HasSubstr("inner"), HasSubstr("take another default_root_dir")));
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
           {{.monitor = "score", .patience = 1},
            {3, 2, 4, 2.5, 1},
            4,
            "has not been better than 2"},
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
    });
  }
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

TEST(Trainer, SaysWhatIsWrong) {
  const auto with = [](const std::function<void(TrainerOptions&)>& change) {
    return complaint([&] {
      TrainerOptions options;
      change(options);
      const Trainer trainer(options);
    });
  };
  EXPECT_THAT(
      with([](auto& o) { o.strategy = "ddp_spawn"; }),
      HasSubstr("strategy \"ddp_spawn\": expected one of ddp, ddp_step, dp, single, zero1"));
  EXPECT_THAT(with([](auto& o) { o.strategy = "zero"; }), HasSubstr("did you mean zero1?"));
  EXPECT_THAT(with([](auto& o) { o.precision = "16-mixed"; }), HasSubstr("bf16-mixed needs none"));
  EXPECT_THAT(with([](auto& o) { o.precision = "bf16"; }), HasSubstr("expected one of"));
  EXPECT_THAT(with([](auto& o) {
                o.precision = "bf16-mixed";
                o.strategy = "zero1";
              }),
              HasSubstr("expected strategy \"ddp\" or \"single\""));
  EXPECT_THAT(with([](auto& o) { o.accelerator = "tpu"; }),
              HasSubstr("accelerator \"tpu\": expected one of auto, cpu, cuda, gpu"));
  EXPECT_THAT(with([](auto& o) { o.accumulate_grad_batches = 0; }),
              HasSubstr("accumulate_grad_batches 0: expected at least 1"));
  EXPECT_THAT(with([](auto& o) { o.limit_val_batches = 1.5; }),
              HasSubstr("limit_val_batches 1.500000: expected a number of batches, or a part"));
  EXPECT_THAT(with([](auto& o) { o.num_nodes = 2; }),
              AllOf(HasSubstr("started alone"), HasSubstr("ddp-run --nnodes 2")));
  EXPECT_THAT(with([](auto& o) {
                o.strategy = "single";
                o.devices = 2;
              }),
              HasSubstr("strategy \"single\" with devices 2"));
  EXPECT_THAT(complaint([] { EarlyStopping({.monitor = ""}); }), HasSubstr("monitor is empty"));
  EXPECT_THAT(complaint([] { ModelCheckpoint({.monitor = "a", .mode = "least"}); }),
              HasSubstr("mode \"least\": expected \"min\" or \"max\""));
}

TEST(Trainer, SaysWhatIsWrongWithATraining) {
  const auto net = std::make_shared<Net>();
  const auto fit = [&](const std::function<void(TrainerOptions&)>& change,
                       const DataLoader& train = loader()) {
    return complaint_of([&](Trainer& trainer) { trainer.fit(net, train, loader()); }, change);
  };
  const auto nothing = [](TrainerOptions&) {};
  EXPECT_THAT(fit(nothing, DataLoader{}), HasSubstr("fit: no data set"));
  DataLoader empty_batches = loader();
  empty_batches.batch_size = 0;
  EXPECT_THAT(fit(nothing, empty_batches), HasSubstr("batch_size 0: expected at least 1"));
  EXPECT_THAT(fit(nothing, loader(2, /*drop_last=*/true)),
              HasSubstr("take 3 samples an update, expected at most the 2 of the data set"));
  EXPECT_THAT(fit([](TrainerOptions& options) {
                options.callbacks = {
                    std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "loss"})};
              }),
              AllOf(HasSubstr("EarlyStopping looks at \"loss\", which nobody has logged"),
                    HasSubstr("val_loss")));
  EXPECT_THAT(fit([](TrainerOptions& options) {
                options.callbacks = {std::make_shared<ModelCheckpoint>(
                    ModelCheckpointOptions{.monitor = "val_loss"})};
              }),
              HasSubstr("nowhere to save"));
  EXPECT_THAT(
      fit([](TrainerOptions& options) { options.comm_hook = "post_localsgd:start_iter=2"; }),
      HasSubstr("comm_hook \"post_localsgd:start_iter=2\": expected one after which"));
  EXPECT_THAT(complaint_of([](Trainer& trainer) { trainer.fit(nullptr, loader()); }),
              HasSubstr("no module"));
  EXPECT_THAT(complaint_of([&](Trainer& trainer) { trainer.test(net, loader(), "best"); }),
              HasSubstr("no ModelCheckpoint"));
  EXPECT_THAT(complaint_of([&](Trainer& trainer) { trainer.test(net, loader(), "last"); }),
              HasSubstr("no default_root_dir"));
  EXPECT_THAT(complaint_of([&](Trainer& trainer) { trainer.test(net, loader(), "/no/such"); }),
              HasSubstr("/no/such"));
  EXPECT_THAT(complaint([&] { net->log("a", 1); }), HasSubstr("outside of a step"));
  EXPECT_THAT(complaint([&] {
                TensorDataset({at::zeros({2}), at::zeros({3})});
              }),
              HasSubstr("the first has 2 and another 3"));
}

}  // namespace
}  // namespace ddp::test
