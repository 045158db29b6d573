#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.h"
#include "tests/support/event_points.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "worker/checkpoint/manifest.h"

// The program ddp-train alone, as a world of one. With several workers it is started by ddp-run in
// tests/process.

// ddp-train's main(), part of this program: loading LibTorch takes longer than these trainings.
extern "C" int ddp_train_main(int argc, char** argv);

namespace ddp::train {
namespace {

using test::Finished;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Arguments = std::vector<std::string>;

// In place of ddp_train_main: the program bin/ddp-train, loaded anew.
constexpr test::Process::Main kProgram = nullptr;

Arguments command(const Arguments& flags) {
  const char* folder = std::getenv("DDP_BIN_DIR");
  Arguments all = {(folder == nullptr ? std::string(".") : std::string(folder)) + "/ddp-train",
                   "--threads", "1"};
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

class TrainTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::string path(const std::string& name) const { return folder_.path() / name; }

  // A short training: 31 steps an epoch, of few samples.
  Arguments small(const Arguments& more) const {
    Arguments flags = {"--train-samples", "250", "--test-samples", "200",     "--batch-size", "8",
                       "--epochs",        "3",   "--grad-sync",    GetParam()};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // Runs to a good end and gives the summary.
  nlohmann::json train(Arguments flags, test::Process::Main main = ddp_train_main) {
    flags.insert(flags.end(), {"--summary", path("summary.json")});
    last_ = test::run(main, command(flags), {}, std::chrono::minutes(2));
    EXPECT_EQ(last_.status, 0) << last_.err;
    return nlohmann::json::parse(folder_.read("summary.json"));
  }

  static void expect_same_result(const nlohmann::json& a, const nlohmann::json& b) {
    for (const char* key : {"weights_sha256", "train_loss", "test_accuracy", "steps", "epochs"}) {
      EXPECT_EQ(a.at(key), b.at(key)) << key;
    }
  }

  // Makes the newest checkpoint one of a program that does not have these flags yet.
  void forget_settings(const std::vector<std::string>& flags) const {
    const std::filesystem::path checkpoints = path("checkpoints");
    std::filesystem::path newest;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
      if (!std::filesystem::exists(entry.path() / checkpoint::kManifestName)) continue;
      newest = std::max(newest, entry.path());
    }
    const std::string name =
        "checkpoints/" + (newest.filename() / checkpoint::kManifestName).string();
    auto manifest = checkpoint::parse_manifest(folder_.read(name));
    ASSERT_TRUE(manifest) << manifest.error().message;
    for (const char* kind : {"must_agree", "may_change"}) {
      nlohmann::json& settings = manifest->state.at("values").at("settings").at(kind);
      for (const std::string& flag : flags) settings.erase(flag);
    }
    const auto text = checkpoint::manifest_to_text(*manifest);
    ASSERT_TRUE(text) << text.error().message;
    folder_.write(name, *text);
  }

  test::TempDir folder_;
  Finished last_;
};

INSTANTIATE_TEST_SUITE_P(Modes, TrainTest, ::testing::Values("ddp", "step", "zero1"),
                         [](const auto& mode) { return mode.param; });

TEST_P(TrainTest, InterruptedTrainingEndsWithTheBytesOfAnUndisturbedOne) {
  const auto undisturbed = train(small({"--dropout", "0.2"}));
  EXPECT_EQ(undisturbed.at("steps"), 93);
  EXPECT_EQ(undisturbed.at("resumed_from_step"), 0);
  EXPECT_GT(undisturbed.at("test_accuracy"), 0.5);
  const Arguments resumable = small({"--dropout", "0.2", "--checkpoint-dir", path("checkpoints")});
  // In the middle of an epoch, at the last step of one, and at the first of one.
  int from = 0;
  for (const int stop : {17, 62, 63}) {
    Arguments flags = resumable;
    flags.insert(flags.end(), {"--max-steps", std::to_string(stop)});
    const auto part = train(flags);
    EXPECT_EQ(part.at("steps"), stop);
    EXPECT_EQ(part.at("resumed_from_step"), from);
    EXPECT_NE(part.at("weights_sha256"), undisturbed.at("weights_sha256"));
    from = stop;
  }
  const auto resumed = train(resumable);
  EXPECT_EQ(resumed.at("resumed_from_step"), 63);
  EXPECT_THAT(last_.out, HasSubstr("resumed from step 63"));
  expect_same_result(resumed, undisturbed);
}

TEST_P(TrainTest, BeginsWithTheWeightsOfAnotherTraining) {
  const auto other = train(small(
      {"--model", "mlp", "--checkpoint-dir", path("other"), "--max-steps", "9", "--seed", "3"}));
  // A step that is too small to change a weight.
  const auto untrained = [&](const Arguments& more) {
    Arguments flags = small({"--model", "mlp", "--max-steps", "1", "--lr", "1e-30"});
    flags.insert(flags.end(), more.begin(), more.end());
    return train(flags).at("weights_sha256");
  };
  EXPECT_EQ(untrained({"--init-from", path("other")}), other.at("weights_sha256"));
  EXPECT_THAT(last_.out, HasSubstr("begins with the weights of step 9"));
  const auto part = untrained({"--init-from", path("other"), "--init-names", "fc1.*,fc?.bias"});
  EXPECT_NE(part, other.at("weights_sha256"));
  EXPECT_NE(part, untrained({}));
  // A stop in between changes nothing, also when the other training is gone by then.
  const Arguments start = {"--model", "mlp", "--init-from", path("other"), "--max-steps", "12"};
  const auto undisturbed = train(small(start));
  Arguments first = small({"--model", "mlp", "--init-from", path("other"), "--max-steps", "7",
                           "--checkpoint-dir", path("checkpoints")});
  train(first);
  std::filesystem::rename(path("other"), path("gone"));
  Arguments second = small(start);
  second.insert(second.end(), {"--checkpoint-dir", path("checkpoints")});
  expect_same_result(train(second), undisturbed);
}

TEST_P(TrainTest, AFinishedTrainingStartedAgainReportsTheSame) {
  const Arguments flags = small({"--checkpoint-dir", path("checkpoints")});
  const auto first = train(flags);
  const auto again = train(flags);
  EXPECT_EQ(again.at("resumed_from_step"), 93);
  expect_same_result(again, first);
}

TEST_P(TrainTest, ATrainingThatReachedItsLastStepStartedAgainReportsTheSame) {
  for (const char* steps : {"31", "40"}) {  // An epoch's last step, and one in the middle.
    const Arguments flags = small({"--checkpoint-dir", path("checkpoints"), "--max-steps", steps});
    const auto first = train(flags);
    const auto again = train(flags);
    EXPECT_EQ(std::to_string(again.at("resumed_from_step").get<int>()), steps);
    expect_same_result(again, first);
  }
}

TEST_P(TrainTest, KilledTrainingEndsWithTheBytesOfAnUndisturbedOne) {
  const auto seed = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  std::printf("seed %u (--gtest_random_seed)\n", seed);
  std::mt19937 draw(seed);
  const auto undisturbed = train(small({}));
  const Arguments flags = small(
      {"--checkpoint-dir", path("checkpoints"), "--checkpoint-every", "4", "--log-every", "1"});
  for (int kill = 0; kill < 3; ++kill) {
    // A line for each step: at least one checkpoint is behind it, and about a third of an epoch.
    const auto lines = static_cast<std::ptrdiff_t>(6 + draw() % 20);
    test::Process process(command(flags));
    test::wait_until([&] {
      const std::string out = process.out();
      return std::count(out.begin(), out.end(), '\n') >= lines || process.has_ended();
    });
    process.kill(SIGKILL);
    ASSERT_TRUE(process.wait());
  }
  const auto resumed = train(flags, kProgram);
  EXPECT_GT(resumed.at("resumed_from_step"), 0);
  expect_same_result(resumed, undisturbed);
}

TEST_P(TrainTest, ToyTrainsAndResumes) {
  const Arguments flags = {"--model",  "toy", "--train-samples", "200",     "--batch-size", "20",
                           "--epochs", "4",   "--grad-sync",     GetParam()};
  const auto undisturbed = train(flags);
  EXPECT_TRUE(undisturbed.at("test_accuracy").is_null());
  EXPECT_LT(undisturbed.at("train_loss"), 1.0);
  Arguments resumable = flags;
  resumable.insert(resumable.end(), {"--checkpoint-dir", path("checkpoints")});
  Arguments part = resumable;
  part.insert(part.end(), {"--max-steps", "13"});
  train(part);
  expect_same_result(train(resumable), undisturbed);
}

TEST_P(TrainTest, RatesAreWrittenEverySoManyStepsAndAppendedAfterResuming) {
  const Arguments flags = small({"--rates", path("rates.jsonl"), "--log-every", "4",
                                 "--checkpoint-dir", path("checkpoints")});
  const auto steps = [&] {
    std::vector<int> found;
    std::istringstream file(folder_.read("rates.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const auto object = nlohmann::json::parse(line);
      EXPECT_EQ(object.at("samples"), 32);
      EXPECT_GT(object.at("samples_per_second"), 0);
      EXPECT_GT(object.at("cpu_seconds"), 0);
      EXPECT_EQ(object.at("learning_rate"), 0.01);
      found.push_back(object.at("step"));
    }
    return found;
  };
  for (const char* limit : {"10", "19"}) {
    Arguments part = flags;
    part.insert(part.end(), {"--max-steps", limit});
    train(part);
  }
  EXPECT_THAT(steps(), ::testing::ElementsAre(4, 8, 14, 18));
}

// Killed after a checkpoint, just before it would have told how long that took.
TEST_P(TrainTest, CurvesHaveTheTimeOfEachCheckpointOnce) {
  const std::string file = path("board") + "/events.out.tfevents.ddp-run";
  Arguments flags = small({"--tensorboard", path("board"), "--log-every", "4", "--checkpoint-dir",
                           path("checkpoints"), "--checkpoint-every", "8"});
  Arguments part = flags;
  part.insert(part.end(), {"--max-steps", "16"});
  train(part);
  std::filesystem::resize_file(file, test::EventPoints(file).last_of("checkpoint_write_seconds"));
  flags.insert(flags.end(), {"--max-steps", "25"});
  train(flags);
  const test::EventPoints points(file);
  for (const char* tag : {"checkpoint_seconds", "checkpoint_write_seconds"})
    EXPECT_THAT(points.steps_of(tag), ::testing::ElementsAre(8, 16, 24, 25)) << tag;
  for (const char* tag : {"loss", "learning_rate", "samples_per_second", "restarts"})
    EXPECT_THAT(points.steps_of(tag), ::testing::ElementsAre(4, 8, 12, 16, 20, 24)) << tag;
}

// Models, optimizers, schedules and hooks: what they keep from step to step is in the checkpoint.
TEST_P(TrainTest, EveryKindOfTrainingResumesExactly) {
  const std::vector<Arguments> kinds = {
      {"--model", "toy", "--optimizer", "adam", "--weight-decay", "0.01", "--lr-schedule",
       "warmup-exponential", "--lr-warmup-epochs", "1.5", "--lr-decay-epochs", "2",
       "--accumulate-steps", "3", "--clip-grad-norm", "0.5"},
      {"--model", "toy-model-parallel", "--micro-batches", "3", "--optimizer", "adamw",
       "--lr-schedule", "step", "--lr-decay-epochs", "1"},
      {"--model", "toy", "--drop-last", "off", "--accumulate-steps", "3", "--momentum", "0.9"},
      {"--model", "toy", "--bucket-cap-mb", "0.0001", "--comm-hook",
       "powersgd:rank=1,start_iter=4,min_compression_rate=1"},
      {"--model", "resnet18", "--image-size", "32", "--num-classes", "4", "--batch-size", "2",
       "--train-samples", "10", "--test-samples", "4", "--epochs", "2", "--momentum", "0.9"}};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    SCOPED_TRACE(kinds[i][1]);
    Arguments flags = kinds[i];
    const bool has_hook = std::find(flags.begin(), flags.end(), "--comm-hook") != flags.end();
    if (has_hook && GetParam() == "zero1") continue;  // Has none.
    flags.insert(flags.end(), {"--grad-sync", GetParam(), "--log-every", "1"});
    if (kinds[i][1] != "resnet18") {
      flags.insert(flags.end(), {"--train-samples", "200", "--batch-size", "8", "--epochs", "3"});
    }
    const auto undisturbed = train(flags);
    const std::string folder = path("checkpoints" + std::to_string(i));
    flags.insert(flags.end(), {"--checkpoint-dir", folder});
    Arguments part = flags;
    part.insert(part.end(), {"--max-steps", kinds[i][1] == "resnet18" ? "7" : "11"});
    EXPECT_NE(train(part).at("weights_sha256"), undisturbed.at("weights_sha256"));
    const auto resumed = train(flags);
    EXPECT_GT(resumed.at("resumed_from_step"), 0);
    EXPECT_THAT(last_.out, ::testing::Not(HasSubstr("note:")));
    expect_same_result(resumed, undisturbed);
  }
}

TEST_P(TrainTest, AccumulatedBackwardsAreAStepOverAllTheirSamples) {
  const auto toy = [&](const Arguments& more) {
    Arguments flags = {"--model",     "toy",      "--train-samples", "192", "--epochs", "2",
                       "--grad-sync", GetParam(), "--test-samples",  "0"};
    flags.insert(flags.end(), more.begin(), more.end());
    return train(flags);
  };
  const auto at_once = toy({"--batch-size", "48"});
  const auto in_parts = toy({"--batch-size", "16", "--accumulate-steps", "3"});
  EXPECT_EQ(in_parts.at("steps"), at_once.at("steps"));
  // The same samples in another order of additions.
  EXPECT_NEAR(in_parts.at("train_loss"), at_once.at("train_loss"), 1e-6);
  EXPECT_TRUE(in_parts.at("test_accuracy").is_null());
}

TEST_P(TrainTest, AModelInTwoStagesEndsWithTheBytesOfTheUndivided) {
  const auto with = [&](const std::string& model) {
    return train({"--model", model, "--train-samples", "200", "--batch-size", "20", "--epochs", "2",
                  "--grad-sync", GetParam()});
  };
  const auto whole = with("toy");
  const auto halves = with("toy-model-parallel");
  expect_same_result(whole, halves);
  EXPECT_EQ(halves.at("model"), "toy-model-parallel");
}

TEST_P(TrainTest, AModelWithoutBuffersIsTrained) {
  const auto summary = train(small({"--model", "mlp", "--max-steps", "3"}));
  EXPECT_EQ(summary.at("steps"), 3);
  EXPECT_EQ(summary.at("epochs"), 0);
}

class TrainErrors : public TrainTest {
 protected:
  void expect_failure(const Arguments& flags, int status,
                      const ::testing::Matcher<const std::string&>& message) {
    last_ = test::run(ddp_train_main, command(flags), {}, std::chrono::minutes(2));
    EXPECT_EQ(last_.status, status) << last_.out << last_.err;
    EXPECT_THAT(last_.err, AllOf(::testing::StartsWith("ddp-train: "), message));
    EXPECT_EQ(std::count(last_.err.begin(), last_.err.end(), '\n'), 1) << last_.err;
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, TrainErrors, ::testing::Values("ddp"),
                         [](const auto& mode) { return mode.param; });

TEST_P(TrainErrors, ACheckpointOfAnotherTrainingIsRefused) {
  const Arguments resumable = small({"--checkpoint-dir", path("checkpoints"), "--max-steps", "2"});
  train(resumable);
  const auto with = [&](const Arguments& more) {
    Arguments flags = resumable;
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  expect_failure(
      with({"--seed", "2"}), kExitInvalidValue,
      AllOf(HasSubstr("--seed 2"), HasSubstr("--seed 1"), HasSubstr(path("checkpoints"))));
  expect_failure(with({"--data", "fake"}), kExitInvalidValue, HasSubstr("--data \"synthetic\""));
  expect_failure(with({"--model", "mlp"}), kExitInvalidValue, HasSubstr(path("checkpoints")));
  expect_failure(with({"--model", "toy"}), kExitInvalidValue, HasSubstr(path("checkpoints")));
  expect_failure(with({"--optimizer", "adam"}), kExitInvalidValue,
                 AllOf(HasSubstr(path("checkpoints")), HasSubstr("SGD"), HasSubstr("Adam")));
  expect_failure(with({"--comm-hook", "fp16"}), kExitInvalidValue, HasSubstr(path("checkpoints")));
  // The right flags still find it as it was.
  EXPECT_EQ(train(resumable).at("resumed_from_step"), 2);
}

// The number of heads changes no tensor's shape, so that nothing else would notice.
TEST_P(TrainErrors, AnotherNumberOfHeadsIsRefused) {
  const Arguments with_two = {
      "--model",     "gpt", "--layers",     "1", "--width",          "16",
      "--context",   "16",  "--batch-size", "2", "--sample-bytes",   "0",
      "--max-steps", "2",   "--heads",      "2", "--checkpoint-dir", path("checkpoints")};
  train(with_two);
  Arguments with_four = with_two;
  with_four[std::size_t(std::find(with_four.begin(), with_four.end(), "--heads") -
                        with_four.begin()) +
            1] = "4";
  expect_failure(with_four, kExitInvalidValue,
                 AllOf(HasSubstr("--heads 4"), HasSubstr("--heads 2")));
  // Of a checkpoint that does not say it, it may have been any number.
  forget_settings({"--heads"});
  EXPECT_EQ(train(with_two).at("resumed_from_step"), 2);
}

TEST_P(TrainErrors, WhatChangesAfterResumingIsSaid) {
  const Arguments resumable = small({"--checkpoint-dir", path("checkpoints")});
  Arguments first = resumable;
  first.insert(first.end(), {"--max-steps", "2"});
  train(first);
  Arguments second = resumable;
  second.insert(second.end(), {"--lr", "0.0625", "--lr-schedule", "step", "--max-steps", "4"});
  train(second);
  EXPECT_THAT(last_.out, HasSubstr("--lr 0.0625 from here on, 0.01 in the checkpoint"));
  EXPECT_THAT(last_.out, HasSubstr("--lr-schedule \"step\" from here on, \"constant\""));
  EXPECT_THAT(last_.out, ::testing::Not(HasSubstr("--momentum")));
}

TEST_P(TrainErrors, ASettingThatTheCheckpointDoesNotKnowHadItsDefault) {
  const Arguments flags = {"--model",      "toy", "--train-samples", "200",
                           "--batch-size", "20",  "--epochs",        "2"};
  const auto undisturbed = train(flags);
  Arguments resumable = flags;
  resumable.insert(resumable.end(), {"--checkpoint-dir", path("checkpoints")});
  Arguments part = resumable;
  part.insert(part.end(), {"--max-steps", "7"});
  train(part);
  forget_settings({"--drop-last", "--device"});

  Arguments other = part;
  other.insert(other.end(), {"--drop-last", "off"});
  train(other);
  EXPECT_THAT(last_.out, HasSubstr("--drop-last false from here on, true in the checkpoint"));
  EXPECT_THAT(last_.out, ::testing::Not(HasSubstr("--device")));
  forget_settings({"--drop-last"});
  expect_same_result(train(resumable), undisturbed);
  EXPECT_THAT(last_.out, ::testing::Not(HasSubstr("note:")));
}

TEST_P(TrainErrors, WhatCannotBeReadOrWrittenIsNamedBeforeTraining) {
  expect_failure({"--data", "mnist", "--data-dir", path("none")}, kExitDataInvalid,
                 AllOf(HasSubstr(path("none")), HasSubstr("no such file")));
  expect_failure({"--summary", path("none/summary.json")}, kExitInvalidValue,
                 AllOf(HasSubstr("--summary"), HasSubstr(path("none/summary.json"))));
  const std::string file = folder_.write("file", "");
  expect_failure(small({"--checkpoint-dir", file + "/checkpoints"}), kExitCheckpointUnwritable,
                 AllOf(HasSubstr("--checkpoint-dir"), HasSubstr(file)));
  expect_failure(small({"--batch-size=2000"}), kExitUsage,
                 HasSubstr("--batch-size"));  // Given twice.
  expect_failure({"--batch-size", "2000", "--train-samples", "1999"}, kExitInvalidValue,
                 AllOf(HasSubstr("--batch-size 2000"), HasSubstr("1999")));
  expect_failure({"--model", "foo"}, kExitInvalidValue, HasSubstr("--model foo"));
  expect_failure({"--init-from", path("none")}, kExitDataInvalid,
                 AllOf(HasSubstr("--init-from"), HasSubstr(path("none"))));
  train(small({"--checkpoint-dir", path("other"), "--max-steps", "1"}));
  expect_failure({"--init-from", path("other"), "--init-names", "cnov*"}, kExitInvalidValue,
                 AllOf(HasSubstr("--init-from"), HasSubstr("cnov*")));
  expect_failure({"--model", "mlp", "--init-from", path("other")}, kExitInvalidValue,
                 HasSubstr("--init-names"));
  expect_failure({"--rates", path("none/rates.jsonl")}, kExitInvalidValue,
                 AllOf(HasSubstr("--rates"), HasSubstr(path("none/rates.jsonl"))));
  expect_failure({"--device", "cuda"}, kExitInvalidValue, HasSubstr("--device cuda"));
  expect_failure({"--comm-hook", "foo"}, kExitInvalidValue,
                 AllOf(HasSubstr("--comm-hook foo"), HasSubstr("powersgd")));
}

TEST_P(TrainErrors, AnEnvironmentThatContradictsItselfIsNamed) {
  const test::ProcessOptions options{.environment = {{"WORLD_SIZE", "2"}, {"RANK", "5"}},
                                     .folder = {}};
  last_ = test::run(command({}), options, std::chrono::minutes(2));
  EXPECT_EQ(last_.status, kExitInvalidValue);
  EXPECT_THAT(last_.err, HasSubstr("RANK"));
}

}  // namespace
}  // namespace ddp::train
