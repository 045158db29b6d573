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
  EXPECT_TRUE(options.batch_norm);
  EXPECT_EQ(good({"--model", "toy"}).data, "fake");
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
                                "--no-batch-norm",
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
  EXPECT_FALSE(options.batch_norm);
  EXPECT_EQ(options.log_every, 1);
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.timeout_seconds, 2.5);
  const Options sizes = good({"--train-samples", "11", "--test-samples", "12"});
  EXPECT_EQ(sizes.train_samples, 11);
  EXPECT_EQ(sizes.test_samples, 12);
}

TEST(TrainOptions, WhatCannotBeReadIsAUsageError) {
  expect_bad({"--modle", "mnist"}, kExitUsage, HasSubstr("--modle"));
  expect_bad({"--mod", "mnist"}, kExitUsage, HasSubstr("--mod"));
  expect_bad({"--model"}, kExitUsage, HasSubstr("--model"));
  expect_bad({"--no-batch-norm=1"}, kExitUsage, HasSubstr("--no-batch-norm"));
  expect_bad({"--seed", "1", "--seed", "2"}, kExitUsage, HasSubstr("--seed"));
  expect_bad({"mnist"}, kExitUsage, HasSubstr("mnist"));
}

TEST(TrainOptions, AWrongValueIsNamedWithWhatWouldBeRight) {
  expect_bad({"--model", "foo"}, kExitInvalidValue,
             AllOf(HasSubstr("--model foo: "), HasSubstr("mnist, toy")));
  expect_bad({"--grad-sync", "ring"}, kExitInvalidValue,
             HasSubstr("--grad-sync ring: expected one of ddp, step"));
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
}

TEST(TrainOptions, HelpAndVersionEndWell) {
  const ParsedOptions help = parse({"--help"});
  EXPECT_FALSE(help.options);
  EXPECT_EQ(help.exit_status, kExitSuccess);
  for (const char* flag : {"--checkpoint-failure", "--grad-sync", "--no-batch-norm", "--timeout"}) {
    EXPECT_THAT(help.text, HasSubstr(flag));
  }
  EXPECT_THAT(parse({"--version"}).text, ::testing::MatchesRegex("ddp-train [0-9.]+\n"));
}

}  // namespace
}  // namespace ddp::train
