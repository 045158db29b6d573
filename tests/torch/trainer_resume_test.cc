// ddp::Trainer resumes from its folder: the same bytes, its log, the best and the last model.
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "tests/support/event_points.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"
#include "tests/torch/trainer_fixture.h"
#include "worker/ddp/state/load_tensors.h"
#include "worker/ddp/trainer/early_stopping.h"
#include "worker/ddp/trainer/learning_rate_monitor.h"
#include "worker/ddp/trainer/model_checkpoint.h"
#include "worker/ddp/trainer/tensorboard_logger.h"
#include "worker/ddp/trainer/throughput_monitor.h"

namespace ddp::test {
namespace {

using namespace trainer_sample;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The steps of the lines that have this name.
std::vector<std::int64_t> steps_in_lines(const std::filesystem::path& path,
                                         const std::string& name) {
  std::vector<std::int64_t> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto values = nlohmann::json::parse(line);
    if (values.contains(name)) steps.push_back(values.at("step").get<std::int64_t>());
  }
  return steps;
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

// An epoch of 46 samples is 16 updates of one worker and 8 of two.
TEST(Trainer, AnotherNumberOfWorkersEndsTheEpochWithoutLosingASample) {
  struct Case {
    int first, then;
    std::int64_t updates, all;
  };
  for (const Case& each : {Case{1, 2, 12, 12 + 2 + 16}, Case{2, 1, 4, 4 + 8 + 32}}) {
    const TempDir folder;
    const auto train = [&](const GroupPtr& group, std::int64_t max_steps) {
      TrainerOptions options = options_for(group);
      options.default_root_dir = folder.path();
      options.max_steps = max_steps;
      Trainer trainer(options);
      trainer.fit(std::make_shared<Net>(), loader());
      EXPECT_EQ(trainer.total_epochs(), max_steps > 0 ? 1 : 3);
      EXPECT_EQ(trainer.total_steps(), max_steps > 0 ? max_steps : each.all);
      EXPECT_EQ(trainer.place().step, trainer.total_steps());
    };
    run_ranks({each.first}, [&](const GroupPtr& group) { train(group, each.updates); });
    run_ranks({each.then}, [&](const GroupPtr& group) { train(group, -1); });
  }
}

// With drop_last the samples that two workers have left may be too few for four.
TEST(Trainer, AnEpochThatIsOverForMoreWorkersHasItsValidation) {
  const TempDir folder;
  const auto train = [&](const GroupPtr& group, std::int64_t max_steps) {
    TrainerOptions options = options_for(group);
    options.default_root_dir = folder.path();
    options.max_epochs = 1;
    options.max_steps = max_steps;
    options.callbacks = {
        std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_loss"})};
    Trainer trainer(options);
    const auto net = std::make_shared<Net>();
    trainer.fit(net, loader(kSamples, true), loader(20));
    EXPECT_EQ(trainer.place().step, 6);
    return net->validations;
  };
  run_ranks({2}, [&](const GroupPtr& group) { EXPECT_EQ(train(group, 6), 0); });
  run_ranks({4}, [&](const GroupPtr& group) { EXPECT_GT(train(group, -1), 0); });
}

TEST(Trainer, TheBestAndTheLastModelCanBeTested) {
  const TempDir folder;
  run_ranks({2}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    options.default_root_dir = folder.path();
    // The first validation is the best.
    const auto saves = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.monitor = "val_loss", .mode = "max"});
    options.callbacks = {saves};
    Trainer trainer(options);
    const auto net = std::make_shared<Net>();
    trainer.fit(net, loader(), loader(20, false, 2));
    {
      // As work that was lost may have left, if the training went on with other numbers of steps.
      Checkpointer lost({.directory = saves->directory_in(folder.path()), .asynchronous = false},
                        group);
      lost.add_module("model", *net);
      ASSERT_TRUE(lost.prepare());
      ASSERT_TRUE(lost.save(1'000));
    }
    const double last = trainer.metrics().at("val_loss");
    const auto other = std::make_shared<Net>();
    const double best = trainer.test(other, loader(20, false, 2), "best").at("val_loss");
    EXPECT_GT(best, last);
    EXPECT_NEAR(trainer.test(other, loader(20, false, 2), "last").at("val_loss"), last, 1e-9);
    EXPECT_EQ(bytes_of(*other), bytes_of(*net));
  });
}

// Looks into the folder whenever the callback before it says that there is a new best model.
struct LooksForTheBest final : Callback {
  explicit LooksForTheBest(std::shared_ptr<ModelCheckpoint> of) : best(std::move(of)) {}
  std::string name() const override { return "LooksForTheBest"; }
  void on_validation_end(Trainer& trainer, TrainerModule& /*module*/) override {
    if (best->best_step() != trainer.place().step) return;
    ++looks;
    const auto there = load_tensors(best->directory_in(trainer.options().default_root_dir));
    ASSERT_TRUE(there) << there.error().message;
    EXPECT_EQ(there->step, best->best_step());
  }
  std::shared_ptr<ModelCheckpoint> best;
  int looks = 0;
};

// The Trainer's checkpoint comes next and says so: if the process ended then, nobody would save it.
TEST(Trainer, TheBestModelIsOnTheDiskBeforeAnybodySaysSo) {
  const TempDir folder;
  run_ranks({2}, [&](const GroupPtr& group) {
    TrainerOptions options = options_for(group);
    options.default_root_dir = folder.path();
    options.val_check_interval = 0.5;
    const auto best =
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.monitor = "val_loss"});
    const auto looks = std::make_shared<LooksForTheBest>(best);
    options.callbacks = {best, looks};
    Trainer(options).fit(std::make_shared<Net>(), loader(), loader(20, false, 2));
    EXPECT_GE(looks->looks, 2);
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
  {
    // A process that cannot write them again, or is killed meanwhile, loses none of the lines.
    const FileSizeLimit full(7);
    EXPECT_THROW(logger.begin({.epoch = 0, .step = 3}), std::runtime_error);
  }
  EXPECT_EQ(text_of(path), whole);
  logger.begin({});
  EXPECT_EQ(text_of(path), "");
}

TEST(Trainer, TheCurvesOfTensorBoardGoOnWhereTheTrainingDoes) {
  const TempDir folder;
  const std::filesystem::path path = folder.path() / "board" / "events.out.tfevents.ddp-run";
  const auto log = [&](std::int64_t resumed_from) {
    TensorBoardLogger logger(folder.path() / "board");
    logger.begin({.epoch = 0, .step = resumed_from});
    for (std::int64_t step = resumed_from + 1; step <= 5; ++step)
      logger.log_metrics({.epoch = 0, .step = step}, {{"loss", 1.0 / static_cast<double>(step)}});
  };
  log(0);
  const std::string whole = text_of(path);
  EXPECT_THAT(whole, ::testing::HasSubstr("loss"));
  std::ofstream(path, std::ios::app) << whole.substr(0, 9);  // Killed in a record.
  log(3);
  EXPECT_EQ(text_of(path).size(), whole.size());  // Only the wall times differ.
  EXPECT_NE(text_of(path), whole);
}

// Its speed and its checkpoints, too. The first training is killed after its last checkpoint, just
// before it would have told how long that took.
TEST(Trainer, ThroughputMonitorLeavesEachStepOnce) {
  for (const bool is_json : {false, true}) {
    const TempDir folder;
    const std::filesystem::path path =
        folder.path() / (is_json ? "metrics.jsonl" : "events.out.tfevents.ddp-run");
    const auto train_until = [&](std::int64_t last) {
      run_ranks({2}, [&](const GroupPtr& group) {
        TrainerOptions options = options_for(group);
        options.default_root_dir = folder.path();
        options.max_steps = last;
        options.checkpoint_every_n_steps = 3;
        if (!is_json) options.logger = std::make_shared<TensorBoardLogger>(folder.path());
        options.callbacks = {std::make_shared<ThroughputMonitor>()};
        Trainer(options).fit(std::make_shared<Net>(), loader());
      });
    };
    const auto steps_of = [&](const std::string& tag) {
      return is_json ? steps_in_lines(path, tag) : EventPoints(path).steps_of(tag);
    };
    train_until(6);
    const auto size = is_json ? text_of(path).rfind("\n{") + 1
                              : EventPoints(path).last_of("checkpoint_write_seconds");
    std::filesystem::resize_file(path, size);
    EXPECT_THAT(steps_of("checkpoint_write_seconds"), ElementsAre(3));
    // Finds nothing to do, and then goes on.
    for (const std::int64_t last : {6, 9}) {
      train_until(last);
      const std::vector<std::int64_t> saved =
          last == 6 ? std::vector<std::int64_t>{3, 6} : std::vector<std::int64_t>{3, 6, 8, 9};
      EXPECT_EQ(steps_of("checkpoint_seconds"), saved);
      EXPECT_EQ(steps_of("checkpoint_write_seconds"), saved);
    }
    for (const char* tag : {"samples_per_second", "round", "restarts"})
      EXPECT_THAT(steps_of(tag), ElementsAre(2, 4, 6, 8)) << tag;
    if (is_json) continue;
    EXPECT_THAT(steps_of("epoch"), ElementsAre(2, 3, 4, 6, 8, 9));
  }
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
              AllOf(HasSubstr("inner"), HasSubstr("use another default_root_dir")));
}

}  // namespace
}  // namespace ddp::test
