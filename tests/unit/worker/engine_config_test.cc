#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "worker/engine_config/config.h"
#include "worker/engine_config/loss_scaler.h"
#include "worker/engine_config/lr_schedule.h"

// What a configuration of ddp::initialize means, and the errors for a wrong one.
namespace ddp::engine {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config parsed(const char* text, int world_size = 2) {
  return parse_config(json::parse(text), world_size);
}

std::string complaint(const char* text, int world_size = 2) {
  try {
    (void)parsed(text, world_size);
  } catch (const std::invalid_argument& wrong) {
    return wrong.what();
  }
  return "accepted";
}

void expect_batch(const char* text, std::int64_t whole, std::int64_t micro, std::int64_t steps) {
  const Config config = parsed(text);
  EXPECT_EQ(config.train_batch_size, whole) << text;
  EXPECT_EQ(config.train_micro_batch_size_per_gpu, micro) << text;
  EXPECT_EQ(config.gradient_accumulation_steps, steps) << text;
}

TEST(EngineConfig, TwoSizesGiveTheThird) {
  expect_batch(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4})", 24, 4, 3);
  expect_batch(R"({"train_batch_size": 24, "gradient_accumulation_steps": 3})", 24, 4, 3);
  expect_batch(R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3})", 24, 4,
               3);
  expect_batch(R"({"train_batch_size": 24})", 24, 12, 1);
  expect_batch(R"({"train_micro_batch_size_per_gpu": 4})", 8, 4, 1);
  expect_batch(
      R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3})",
      24, 4, 3);
}

TEST(EngineConfig, AContradictionShowsTheSum) {
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 25, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3})"),
      HasSubstr("train_batch_size: 25 is not train_micro_batch_size_per_gpu * "
                "gradient_accumulation_steps * workers = 4 * 3 * 2 = 24"));
  EXPECT_THAT(complaint(R"({"train_batch_size": 25, "train_micro_batch_size_per_gpu": 4})"),
              HasSubstr("4 * 3 * 2 = 24"));
  EXPECT_THAT(complaint(R"({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 4})"),
              HasSubstr("4 * 0 * 2 = 0"));
  EXPECT_THAT(complaint(R"({"train_batch_size": 25})"), HasSubstr("12 * 1 * 2 = 24"));
  EXPECT_THAT(complaint(R"({"gradient_accumulation_steps": 3})"), HasSubstr("both are missing"));
}

TEST(EngineConfig, AnUnknownKeyIsNamedWithTheNearestOne) {
  EXPECT_EQ(complaint(R"({"train_batch_size": 4, "gradient_cliping": 1})"),
            "gradient_cliping: there is no such key; gradient_clipping is the nearest");
  EXPECT_EQ(complaint(R"({"train_batch_size": 4, "zero_optimization": {"stag": 1}})"),
            "zero_optimization.stag: there is no such key; zero_optimization.stage is the nearest");
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"learning_rate": 1}}})"),
      AllOf(HasSubstr("optimizer.params.learning_rate: there is no such key"), HasSubstr("lr")));
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"betas": [0, 0]}}})"),
      HasSubstr("optimizer.params.betas: there is no such key"));
}

TEST(EngineConfig, AWrongValueIsNamedWithWhatWouldBeRight) {
  EXPECT_EQ(complaint(R"([])"), "the configuration: expected an object, it is []");
  EXPECT_EQ(complaint(R"({"train_batch_size": 0})"),
            "train_batch_size: expected a whole number from 1, it is 0");
  EXPECT_EQ(complaint(R"({"train_batch_size": "auto"})"),
            "train_batch_size: expected a whole number from 1, it is \"auto\"");
  EXPECT_EQ(complaint(R"({"train_batch_size": 4.5})"),
            "train_batch_size: expected a whole number from 1, it is 4.5");
  EXPECT_THAT(complaint(R"({"train_batch_size": 4, "gradient_clipping": -1})"),
              HasSubstr("gradient_clipping: expected a number from 0"));
  EXPECT_THAT(
      complaint(R"({"train_batch_size": 4, "optimizer": {"type": "Lion"}})"),
      HasSubstr(
          "optimizer.type: expected one of Adam, AdamW, SGD, Adagrad, RMSprop, it is \"Lion\""));
  EXPECT_THAT(complaint(R"({"train_batch_size": 4, "optimizer": {}})"), HasSubstr("it is missing"));
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 4, "optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})"),
      HasSubstr("two numbers"));
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 4, "optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}})"),
      HasSubstr("below 1"));
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"nesterov": true}}})"),
      HasSubstr("momentum"));
  EXPECT_THAT(complaint(R"({"train_batch_size": 4, "zero_optimization": {"stage": 2}})"),
              HasSubstr("zero_optimization.stage: expected 0 or 1, it is 2"));
  EXPECT_THAT(
      complaint(R"({"train_batch_size": 4, "fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
      HasSubstr("bf16.enabled, fp16.enabled"));
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 4, "fp16": {"enabled": true}, "zero_optimization": {"stage": 1}})"),
      HasSubstr("zero_optimization.stage: expected 0 with fp16"));
  EXPECT_THAT(complaint(R"({"train_batch_size": 4, "scheduler": {"type": "WarmupDecayLR"}})"),
              HasSubstr("total_num_steps"));
  EXPECT_THAT(
      complaint(
          R"({"train_batch_size": 4, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5, "warmup_num_steps": 6}}})"),
      HasSubstr("at least warmup_num_steps, 6, it is 5"));
  EXPECT_THAT(complaint(R"({"train_batch_size": 4, "fp16": {"enabled": "yes"}})"),
              HasSubstr("fp16.enabled: expected true or false"));
}

TEST(EngineConfig, OfDeepSpeedIsTakenWithWhatIsOfNoUseHere) {
  const Config config = parsed(R"({
    "train_batch_size": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}},
    "gradient_clipping": 1.0, "prescale_gradients": false, "steps_per_print": 2000, "wall_clock_breakdown": false,
    "bf16": {"enabled": false},
    "zero_optimization": {"stage": 1, "allgather_partitions": true, "reduce_bucket_size": 5e8, "overlap_comm": true}})");
  EXPECT_EQ(config.optimizer->type, "AdamW");  // DeepSpeed's Adam.
  EXPECT_EQ(config.optimizer->beta1, 0.8);
  EXPECT_EQ(config.zero_stage, 1);
  EXPECT_EQ(config.steps_per_print, 2000);
  EXPECT_NEAR(config.reduce_bucket_mb, 5e8 * 4 / 1048576, 1e-6);
  EXPECT_THAT(config.unused_keys,
              ElementsAre("zero_optimization.allgather_partitions",
                          "zero_optimization.overlap_comm", "prescale_gradients"));
  EXPECT_EQ(
      parsed(
          R"({"train_batch_size": 2, "optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})")
          .optimizer->type,
      "Adam");
}

TEST(EngineConfig, AFileThatIsWrongIsNamed) {
  const test::TempDir folder;
  const auto complaint_about = [](const std::string& path) -> std::string {
    try {
      (void)read_config(path, 1);
    } catch (const std::invalid_argument& wrong) {
      return wrong.what();
    }
    return "accepted";
  };
  EXPECT_EQ(complaint_about(folder.write("good.json", R"({"train_batch_size": 1})")), "accepted");
  EXPECT_THAT(complaint_about("/nowhere/x.json"), HasSubstr("/nowhere/x.json cannot be read"));
  EXPECT_THAT(complaint_about(folder.write("cut.json", R"({"train_batch_size": )")),
              AllOf(HasSubstr("cut.json is not JSON"), HasSubstr("column")));
  EXPECT_THAT(complaint_about(folder.write("bad.json", R"({"train_batch_size": 0})")),
              HasSubstr("bad.json: train_batch_size: expected"));
}

TEST(LrSchedule, RisesAndStaysOrFalls) {
  SchedulerConfig schedule;
  schedule.warmup_min_lr = 0.1;
  schedule.warmup_max_lr = 1.1;
  schedule.warmup_num_steps = 10;
  schedule.warmup_type = SchedulerConfig::Rise::kLinear;
  EXPECT_NEAR(learning_rate(schedule, 9, 0), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 5), 0.6, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 10), 1.1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 99999), 1.1, 1e-12);
  schedule.warmup_type = SchedulerConfig::Rise::kLog;
  EXPECT_NEAR(learning_rate(schedule, 9, 0), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 4), 0.1 + std::log(5) / std::log(10), 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 9), 1.1, 1e-12);
  schedule.type = SchedulerConfig::Type::kWarmupDecay;
  schedule.total_num_steps = 30;
  EXPECT_NEAR(learning_rate(schedule, 9, 4), 0.1 + std::log(5) / std::log(10), 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 10), 1.1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 20), 0.6, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 30), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 9, 40), 0.1, 1e-12);
  schedule.type = SchedulerConfig::Type::kWarmupCosine;
  schedule.warmup_min_ratio = 0.5;
  schedule.cos_min_ratio = 0.1;
  EXPECT_NEAR(learning_rate(schedule, 2, 0), 1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 2, 10), 2, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 2, 20), 2 * (0.1 + 0.9 / 2), 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 2, 30), 0.2, 1e-12);
}

TEST(LossScaler, HalvesAfterARowOfOverflowsAndDoublesAfterAWhile) {
  Fp16Config config;
  config.enabled = true;
  config.initial_scale_power = 4;
  config.loss_scale_window = 3;
  config.hysteresis = 2;
  config.min_loss_scale = 4;
  LossScaler scaler(config);
  const auto after = [&](bool overflowed) {
    scaler.update(overflowed);
    return scaler.scale();
  };
  EXPECT_EQ(scaler.scale(), 16);
  EXPECT_EQ(after(true), 16);  // The first is forgiven.
  EXPECT_EQ(after(true), 8);
  EXPECT_EQ(after(true), 4);
  EXPECT_EQ(after(true), 4);  // No less.
  EXPECT_EQ(after(false), 4);
  LossScaler other(config);
  other.load_state(scaler.state());
  for (LossScaler* const each : {&scaler, &other}) {
    each->update(false);
    EXPECT_EQ(each->scale(), 4);
    each->update(false);
    EXPECT_EQ(each->scale(), 8);
    each->update(true);
    EXPECT_EQ(each->scale(), 8);  // Forgiven again.
  }
  config.loss_scale = 128;
  LossScaler fixed(config);
  fixed.update(true);
  fixed.update(true);
  EXPECT_EQ(fixed.scale(), 128);
  EXPECT_EQ(LossScaler(Fp16Config()).scale(), 1);
}

}  // namespace
}  // namespace ddp::engine
