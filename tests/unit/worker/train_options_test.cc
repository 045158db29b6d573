#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/exit_codes.h"
#include "worker/train/options.h"

namespace ddp::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ParsedOptions parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"ddp-train"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

Options good(const std::vector<std::string>& arguments) {
  const ParsedOptions parsed = parse(arguments);
  EXPECT_TRUE(parsed.options) << parsed.text;
  return parsed.options.value_or(Options{});
}

void expect_bad(const std::vector<std::string>& arguments, int status,
                const ::testing::Matcher<const std::string&>& text) {
  const ParsedOptions parsed = parse(arguments);
  EXPECT_FALSE(parsed.options);
  EXPECT_EQ(parsed.exit_status, status) << parsed.text;
  EXPECT_THAT(parsed.text, AllOf(::testing::StartsWith("ddp-train: "), text));
  EXPECT_EQ(parsed.text.find('\n'), std::string::npos) << "one line: " << parsed.text;
}

TEST(TrainOptions, DefaultsAreThePublishedSettings) {
  const Options options = good({});
  EXPECT_EQ(options.model, "mnist");
  EXPECT_EQ(options.data, "synthetic");
  EXPECT_EQ(options.batch_size, 128);
  EXPECT_EQ(options.epochs, 18);
  EXPECT_EQ(options.lr, 0.01);
  EXPECT_EQ(options.momentum, 0.5);
  EXPECT_EQ(options.seed, 1U);
  EXPECT_EQ(options.grad_sync, GradSync::kDdp);
  EXPECT_EQ(good({"--model", "toy"}).data, "fake");
  EXPECT_EQ(options.optimizer, OptimizerKind::kSgd);
  EXPECT_EQ(options.lr_schedule, LrSchedule::kConstant);
  EXPECT_EQ(options.accumulate_steps, 1);
  EXPECT_TRUE(options.drop_last);
  EXPECT_EQ(options.clip_grad_norm, 0);
  EXPECT_EQ(options.device, DeviceKind::kCpu);
  EXPECT_TRUE(options.gradient_as_bucket_view);
  EXPECT_TRUE(options.broadcast_buffers);
  EXPECT_EQ(good({"--model", "resnet50"}).image_size, 224);
}

TEST(TrainOptions, DashUnderscoreAndEqualsSignAreTheSame) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--batch-size", "7"}, {"--batch_size", "7"}, {"--batch-size=7"}, {"--batch_size=7"}}) {
    EXPECT_EQ(good(arguments).batch_size, 7);
  }
  EXPECT_EQ(good({"--summary=a_b"}).summary, "a_b");
}

TEST(TrainOptions, EveryFlagReachesItsMember) {
  const Options options = good({"--data",
                                "mnist",
                                "--data-dir",
                                "d",
                                "--epochs",
                                "3",
                                "--max-steps",
                                "40",
                                "--lr",
                                "0.5",
                                "--momentum",
                                "0",
                                "--seed",
                                "9",
                                "--grad-sync",
                                "step",
                                "--checkpoint-dir",
                                "c",
                                "--checkpoint-every",
                                "5",
                                "--checkpoint-keep",
                                "0",
                                "--checkpoint-failure",
                                "continue",
                                "--summary",
                                "s",
                                "--rates",
                                "r",
                                "--tensorboard",
                                "t",
                                "--eval-every",
                                "6",
                                "--log-every",
                                "1",
                                "--threads",
                                "2",
                                "--timeout",
                                "2.5"});
  EXPECT_EQ(options.data, "mnist");
  EXPECT_EQ(options.data_dir, "d");
  EXPECT_EQ(options.epochs, 3);
  EXPECT_EQ(options.max_steps, 40);
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.momentum, 0);
  EXPECT_EQ(options.seed, 9U);
  EXPECT_EQ(options.grad_sync, GradSync::kStep);
  EXPECT_EQ(options.checkpoint_dir, "c");
  EXPECT_EQ(options.checkpoint_every, 5);
  EXPECT_EQ(options.checkpoint_keep, 0);
  EXPECT_EQ(options.checkpoint_failure, OnCheckpointFailure::kContinue);
  EXPECT_EQ(options.summary, "s");
  EXPECT_EQ(options.rates, "r");
  EXPECT_EQ(options.tensorboard, "t");
  EXPECT_EQ(options.eval_every, 6);
  EXPECT_EQ(options.log_every, 1);
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.timeout_seconds, 2.5);
  const Options sizes = good({"--train-samples", "11", "--test-samples", "12"});
  EXPECT_EQ(sizes.train_samples, 11);
  EXPECT_EQ(sizes.test_samples, 12);
}

TEST(TrainOptions, FlagsOfCheckpointsReachTheirMembers) {
  const Options options =
      good({"--checkpoint-dir", "c", "--checkpoint-keep-every", "100", "--checkpoint-async", "off",
            "--checkpoint-bandwidth", "12.5", "--checkpoint-timeout", "90", "--init-from", "other",
            "--init-names", "conv*,fc.bias"});
  EXPECT_EQ(options.checkpoint_keep_every, 100);
  EXPECT_FALSE(options.checkpoint_async);
  EXPECT_EQ(options.checkpoint_bandwidth, 12.5);
  EXPECT_EQ(options.checkpoint_timeout, 90);
  EXPECT_EQ(options.init_from, "other");
  EXPECT_EQ(options.init_names, "conv*,fc.bias");
  const Options usual = good({"--checkpoint-dir", "c"});
  EXPECT_TRUE(usual.checkpoint_async);
  EXPECT_EQ(usual.checkpoint_bandwidth, 0);
  EXPECT_EQ(usual.checkpoint_timeout, 600);
  for (const char* flag :
       {"--checkpoint-keep-every", "--checkpoint-bandwidth", "--checkpoint-timeout"}) {
    expect_bad({flag, "5"}, kExitInvalidValue,
               AllOf(HasSubstr(flag), HasSubstr("--checkpoint-dir")));
  }
  expect_bad({"--init-names", "*"}, kExitInvalidValue, HasSubstr("--init-from"));
  expect_bad({"--init-from", ""}, kExitInvalidValue, HasSubstr("--init-from"));
}

TEST(TrainOptions, CommitsAreMeasuredUnlessANumberIsGiven) {
  EXPECT_EQ(good({}).commit_every, 0);
  EXPECT_EQ(good({"--commit-every", "auto"}).commit_every, 0);
  EXPECT_EQ(good({"--commit-every", "20"}).commit_every, 20);
  for (const char* wrong : {"0", "-1", "often", ""}) {
    EXPECT_THAT(parse({"--commit-every", wrong}).text, HasSubstr("--commit-every")) << wrong;
  }
}

TEST(TrainOptions, FlagsOfModelsReachTheirMembers) {
  for (const char* name : {"toy", "toy-model-parallel", "mlp", "mnist", "resnet18", "resnet50",
                           "resnet50-model-parallel"}) {
    EXPECT_EQ(good({"--model", name}).model, name);
  }
  EXPECT_EQ(good({"--model", "mlp"}).data, "synthetic");
  EXPECT_EQ(good({"--dropout", "0.25"}).dropout, 0.25);
  const Options images = good({"--model", "resnet50-model-parallel", "--image-size", "64",
                               "--num-classes", "10", "--micro-batches", "4", "--device", "cuda"});
  EXPECT_EQ(images.data, "fake");
  EXPECT_EQ(images.image_size, 64);
  EXPECT_EQ(images.num_classes, 10);
  EXPECT_EQ(images.micro_batches, 4);
  EXPECT_EQ(images.device, DeviceKind::kCuda);
}

TEST(TrainOptions, TheLearningRateWithoutAFlagIsTheModels) {
  EXPECT_EQ(good({"--model", "toy"}).lr, 0.01);
  EXPECT_EQ(good({"--model", "gpt"}).lr, 5e-4);
  EXPECT_EQ(good({"--model", "gpt", "--lr", "0.25"}).lr, 0.25);
}

TEST(TrainOptions, FlagsOfTheOptimizerReachTheirMembers) {
  const Options adam =
      good({"--optimizer", "adam", "--weight-decay", "0.1", "--accumulate-steps", "3",
            "--clip-grad-norm", "2.5", "--drop-last", "off", "--lr-schedule", "warmup-exponential",
            "--lr-warmup-epochs", "1.5", "--lr-decay-epochs", "7", "--lr-decay-factor", "3"});
  EXPECT_EQ(adam.optimizer, OptimizerKind::kAdam);
  EXPECT_EQ(adam.weight_decay, 0.1);
  EXPECT_EQ(adam.accumulate_steps, 3);
  EXPECT_FALSE(adam.drop_last);
  EXPECT_EQ(adam.clip_grad_norm, 2.5);
  EXPECT_EQ(adam.lr_schedule, LrSchedule::kWarmupExponential);
  EXPECT_EQ(adam.lr_warmup_epochs, 1.5);
  EXPECT_EQ(adam.lr_decay_epochs, 7);
  EXPECT_EQ(adam.lr_decay_factor, 3);
  const Options adamw = good({"--optimizer", "adamw", "--lr-schedule", "step"});
  EXPECT_EQ(adamw.optimizer, OptimizerKind::kAdamW);
  EXPECT_EQ(adamw.lr_schedule, LrSchedule::kStep);
}

TEST(TrainOptions, FlagsOfDataParallelismReachTheirMembers) {
  const Options options =
      good({"--comm-hook", "powersgd:rank=2", "--bucket-cap-mb", "0.5", "--gradient-as-bucket-view",
            "off", "--broadcast-buffers", "off", "--find-unused-parameters", "--static-graph"});
  EXPECT_EQ(options.comm_hook, "powersgd:rank=2");
  EXPECT_EQ(options.bucket_cap_mb, 0.5);
  EXPECT_FALSE(options.gradient_as_bucket_view);
  EXPECT_FALSE(options.broadcast_buffers);
  EXPECT_TRUE(options.find_unused_parameters);
  EXPECT_TRUE(options.static_graph);
}

TEST(TrainOptions, LogicalRanksAreAveragedAfterTheirBackwards) {
  EXPECT_EQ(good({}).logical_world_size, 0);
  const Options options = good({"--logical-world-size", "4"});
  EXPECT_EQ(options.logical_world_size, 4);
  EXPECT_EQ(options.grad_sync, GradSync::kStep);
  EXPECT_NE(agreed_flags(options), agreed_flags(good({"--logical-world-size", "5"})));
  for (const std::vector<std::string>& other :
       std::vector<std::vector<std::string>>{{"--grad-sync", "ddp"},
                                             {"--comm-hook", "fp16"},
                                             {"--bucket-cap-mb", "1"},
                                             {"--gradient-as-bucket-view", "on"},
                                             {"--broadcast-buffers", "off"},
                                             {"--find-unused-parameters"},
                                             {"--static-graph"},
                                             {"--device", "cuda"}}) {
    std::vector<std::string> arguments = {"--logical-world-size", "4"};
    arguments.insert(arguments.end(), other.begin(), other.end());
    expect_bad(arguments, kExitInvalidValue,
               AllOf(HasSubstr(other[0]), HasSubstr("--logical-world-size")));
  }
  expect_bad({"--logical-world-size", "32769"}, kExitInvalidValue,
             HasSubstr("--logical-world-size 32769"));
}

// A difference in any of them would make workers compute different things or wait in vain.
TEST(TrainOptions, WorkersMustAgreeOnWhatTheyCompute) {
  const std::string own = agreed_flags(good({"--model", "resnet50-model-parallel"}));
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--micro-batches", "2"},
           {"--image-size", "64"},
           {"--num-classes", "10"},
           {"--optimizer", "adam"},
           {"--weight-decay", "0.1"},
           {"--lr-schedule", "step"},
           {"--lr-schedule", "warmup-exponential", "--lr-warmup-epochs", "2"},
           {"--lr-schedule", "step", "--lr-decay-epochs", "2"},
           {"--lr-schedule", "step", "--lr-decay-factor", "2"},
           {"--accumulate-steps", "2"},
           {"--clip-grad-norm", "1"},
           {"--comm-hook", "fp16"},
           {"--bucket-cap-mb", "1"},
           {"--gradient-as-bucket-view", "off"},
           {"--broadcast-buffers", "off"},
           {"--find-unused-parameters"},
           {"--static-graph"},
           {"--device", "cuda"}}) {
    std::vector<std::string> arguments = {"--model", "resnet50-model-parallel"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_NE(agreed_flags(good(arguments)), own) << more[0];
  }
  EXPECT_NE(agreed_flags(good({"--dropout", "0.5"})), agreed_flags(good({})));
  // Nodes may differ in where things are.
  EXPECT_EQ(agreed_flags(
                good({"--model", "resnet50-model-parallel", "--threads", "3", "--summary", "s"})),
            own);
}

TEST(TrainOptions, WhatCannotBeReadIsAUsageError) {
  expect_bad({"--modle", "mnist"}, kExitUsage, HasSubstr("--modle"));
  expect_bad({"--mod", "mnist"}, kExitUsage, HasSubstr("--mod"));
  expect_bad({"--model"}, kExitUsage, HasSubstr("--model"));
  expect_bad({"--static-graph=1"}, kExitUsage, HasSubstr("--static-graph"));
  expect_bad({"--seed", "1", "--seed", "2"}, kExitUsage, HasSubstr("--seed"));
  expect_bad({"mnist"}, kExitUsage, HasSubstr("mnist"));
}

TEST(TrainOptions, AWrongValueIsNamedWithWhatWouldBeRight) {
  expect_bad({"--model", "foo"}, kExitInvalidValue,
             AllOf(HasSubstr("--model foo: "), HasSubstr("mnist, resnet18")));
  expect_bad({"--grad-sync", "ring"}, kExitInvalidValue,
             HasSubstr("--grad-sync ring: expected one of ddp, step, zero1"));
  expect_bad({"--batch-size", "0"}, kExitInvalidValue,
             HasSubstr("--batch-size 0: expected a whole number from 1"));
  expect_bad({"--epochs", "1.5"}, kExitInvalidValue, HasSubstr("--epochs 1.5"));
  expect_bad({"--epochs", ""}, kExitInvalidValue, HasSubstr("--epochs"));
  expect_bad({"--seed", "-1"}, kExitInvalidValue,
             HasSubstr("--seed -1: expected a whole number from 0"));
  expect_bad({"--max-steps", "99999999999999999999"}, kExitInvalidValue, HasSubstr("--max-steps"));
  expect_bad({"--lr", "-1"}, kExitInvalidValue,
             HasSubstr("--lr -1: expected a number greater than 0"));
  expect_bad({"--lr", "nan"}, kExitInvalidValue, HasSubstr("--lr nan"));
  expect_bad({"--momentum", "1"}, kExitInvalidValue, HasSubstr("--momentum 1"));
  expect_bad({"--timeout", "0"}, kExitInvalidValue, HasSubstr("--timeout 0"));
  expect_bad({"--dropout", "1"}, kExitInvalidValue, HasSubstr("--dropout 1"));
  expect_bad({"--checkpoint-failure", "x", "--checkpoint-dir", "d"}, kExitInvalidValue,
             HasSubstr("stop, continue"));
  expect_bad({"--summary", ""}, kExitInvalidValue, HasSubstr("--summary"));
}

TEST(TrainOptions, FlagsThatContradictEachOtherAreNamed) {
  expect_bad({"--data", "mnist"}, kExitInvalidValue, HasSubstr("--data-dir"));
  expect_bad({"--data-dir", "d"}, kExitInvalidValue, HasSubstr("--data mnist"));
  expect_bad({"--model", "toy", "--data", "synthetic"}, kExitInvalidValue, HasSubstr("fake"));
  expect_bad({"--data", "mnist", "--data-dir", "d", "--train-samples", "5"}, kExitInvalidValue,
             HasSubstr("--train-samples"));
  expect_bad({"--checkpoint-every", "5"}, kExitInvalidValue, HasSubstr("--checkpoint-dir"));
  expect_bad({"--model", "resnet18", "--data", "synthetic"}, kExitInvalidValue, HasSubstr("fake"));
  expect_bad({"--model", "resnet18", "--dropout", "0.5"}, kExitInvalidValue,
             AllOf(HasSubstr("--dropout"), HasSubstr("--model mnist")));
  expect_bad({"--model", "mlp", "--dropout", "0.5"}, kExitInvalidValue,
             AllOf(HasSubstr("--dropout"), HasSubstr("--model mnist")));
  expect_bad({"--image-size", "64"}, kExitInvalidValue, HasSubstr("resnet50"));
  expect_bad({"--num-classes", "5"}, kExitInvalidValue, HasSubstr("--num-classes"));
  expect_bad({"--model", "resnet50", "--micro-batches", "2"}, kExitInvalidValue,
             AllOf(HasSubstr("--micro-batches"), HasSubstr("resnet50-model-parallel")));
  expect_bad({"--model", "toy-model-parallel", "--micro-batches", "9", "--batch-size", "8"},
             kExitInvalidValue, AllOf(HasSubstr("--micro-batches 9"), HasSubstr("8")));
  expect_bad({"--optimizer", "adam", "--momentum", "0.9"}, kExitInvalidValue,
             AllOf(HasSubstr("--momentum"), HasSubstr("sgd")));
  expect_bad({"--lr-decay-epochs", "3"}, kExitInvalidValue, HasSubstr("--lr-schedule"));
  expect_bad({"--lr-schedule", "step", "--lr-warmup-epochs", "3"}, kExitInvalidValue,
             HasSubstr("warmup-exponential"));
  expect_bad({"--grad-sync", "step", "--static-graph"}, kExitInvalidValue,
             AllOf(HasSubstr("--static-graph"), HasSubstr("--grad-sync ddp")));
  expect_bad({"--rates", ""}, kExitInvalidValue, HasSubstr("--rates"));
  expect_bad({"--broadcast-buffers", "yes"}, kExitInvalidValue, HasSubstr("on, off"));
}

TEST(TrainOptions, HelpAndVersionEndWell) {
  const ParsedOptions help = parse({"--help"});
  EXPECT_FALSE(help.options);
  EXPECT_EQ(help.exit_status, kExitSuccess);
  for (const char* text :
       {"--checkpoint-failure", "--grad-sync", "--dropout", "--timeout",
        "Optimizer:", "toy-model-parallel", "resnet50-model-parallel", "warmup-exponential"}) {
    EXPECT_THAT(help.text, HasSubstr(text));
  }
  EXPECT_THAT(parse({"--version"}).text, ::testing::MatchesRegex("ddp-train [0-9.]+\n"));
}

}  // namespace
}  // namespace ddp::train
