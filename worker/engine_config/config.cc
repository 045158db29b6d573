#include "worker/engine_config/config.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "worker/engine_config/section.h"

namespace ddp::engine {
namespace {

using nlohmann::json;

constexpr double kLarge = 1e30;

OptimizerConfig parse_optimizer(const json& value) {
  constexpr std::string_view kTypes[] = {"Adam", "AdamW", "SGD", "Adagrad", "RMSprop"};
  Section section(value, "optimizer");
  OptimizerConfig result;
  result.type = section.word("type", kTypes);
  static const json kNone = json::object();
  const json* const given = section.find("params");
  Section params(given == nullptr ? kNone : *given, "optimizer.params");
  params.read("lr", result.lr, 0, kLarge);
  params.read("weight_decay", result.weight_decay, 0, kLarge);
  params.read("eps", result.eps, 0, kLarge);
  const bool is_adam = result.type.starts_with("Adam");
  if (is_adam) {
    if (const json* const betas = params.find("betas")) {
      const bool fits = betas->is_array() && betas->size() == 2 && (*betas)[0].is_number() &&
                        (*betas)[1].is_number();
      if (!fits) refuse("optimizer.params.betas: expected two numbers, it is {}", betas->dump());
      result.beta1 = (*betas)[0].get<double>();
      result.beta2 = (*betas)[1].get<double>();
      for (const double beta : {result.beta1, result.beta2}) {
        if (!(beta >= 0 && beta < 1))
          refuse("optimizer.params.betas: expected numbers from 0 to below 1, one is {}", beta);
      }
    }
    params.read("amsgrad", result.amsgrad);
    // As in DeepSpeed, whose Adam decays weights and not gradients unless it is told otherwise.
    bool decays_weights = true;
    params.read("adam_w_mode", decays_weights);
    if (result.type == "Adam" && decays_weights) result.type = "AdamW";
  } else if (result.type != "Adagrad") {
    params.read("momentum", result.momentum, 0, 1);
  }
  if (result.type == "SGD") {
    params.read("dampening", result.dampening, 0, 1);
    params.read("nesterov", result.nesterov);
    if (result.nesterov && (result.momentum == 0 || result.dampening != 0)) {
      refuse("optimizer.params.nesterov: expected a momentum above 0 and no dampening with it");
    }
  }
  params.finish();
  section.finish();
  return result;
}

SchedulerConfig parse_scheduler(const json& value) {
  constexpr std::string_view kTypes[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
  constexpr std::string_view kRises[] = {"log", "linear"};
  using Type = SchedulerConfig::Type;
  Section section(value, "scheduler");
  SchedulerConfig result;
  const std::string type = section.word("type", kTypes);
  result.type = type == "WarmupLR"        ? Type::kWarmup
                : type == "WarmupDecayLR" ? Type::kWarmupDecay
                                          : Type::kWarmupCosine;
  static const json kNone = json::object();
  const json* const given = section.find("params");
  Section params(given == nullptr ? kNone : *given, "scheduler.params");
  params.read("warmup_num_steps", result.warmup_num_steps, 0);
  if (params.find("warmup_type") != nullptr && params.word("warmup_type", kRises) == "linear") {
    result.warmup_type = SchedulerConfig::Rise::kLinear;
  }
  if (result.type == Type::kWarmupCosine) {
    params.read("warmup_min_ratio", result.warmup_min_ratio, 0, 1);
    params.read("cos_min_ratio", result.cos_min_ratio, 0, 1);
  } else {
    params.read("warmup_min_lr", result.warmup_min_lr, 0, kLarge);
    params.read("warmup_max_lr", result.warmup_max_lr, 0, kLarge);
  }
  if (result.type != Type::kWarmup) {
    params.read("total_num_steps", result.total_num_steps, 1);
    if (result.total_num_steps == 0)
      refuse("scheduler.params.total_num_steps: expected a whole number from 1, it is missing");
    if (result.total_num_steps < result.warmup_num_steps) {
      refuse("scheduler.params.total_num_steps: expected at least warmup_num_steps, {}, it is {}",
             result.warmup_num_steps, result.total_num_steps);
    }
  }
  params.finish();
  section.finish();
  return result;
}

Fp16Config parse_fp16(const json& value, std::vector<std::string>& unused) {
  constexpr std::string_view kUnused[] = {"auto_cast", "consecutive_hysteresis",
                                          "fp16_master_weights_and_grads", "opt_level"};
  Section section(value, "fp16");
  Fp16Config result;
  section.read("enabled", result.enabled);
  section.read("loss_scale", result.loss_scale, 0, kLarge);
  section.read("initial_scale_power", result.initial_scale_power, 0);
  section.read("loss_scale_window", result.loss_scale_window, 1);
  section.read("hysteresis", result.hysteresis, 1);
  section.read("min_loss_scale", result.min_loss_scale, 0, kLarge);
  section.ignore(kUnused, unused);
  section.finish();
  return result;
}

void parse_zero(const json& value, Config& config) {
  constexpr std::string_view kUnused[] = {"allgather_partitions",
                                          "allgather_bucket_size",
                                          "overlap_comm",
                                          "reduce_scatter",
                                          "contiguous_gradients",
                                          "round_robin_gradients",
                                          "offload_param",
                                          "offload_optimizer",
                                          "cpu_offload",
                                          "sub_group_size",
                                          "stage3_prefetch_bucket_size",
                                          "stage3_param_persistence_threshold",
                                          "stage3_max_live_parameters",
                                          "stage3_max_reuse_distance",
                                          "elastic_checkpoint",
                                          "load_from_fp32_weights",
                                          "ignore_unused_parameters"};
  constexpr double kElementBytes = 4;
  constexpr double kMebibyte = 1 << 20;
  Section section(value, "zero_optimization");
  section.read("stage", config.zero_stage, 0);
  if (config.zero_stage > 1) {
    refuse(
        "zero_optimization.stage: expected 0 or 1, it is {}; gradients and parameters are not "
        "divided here",
        config.zero_stage);
  }
  double elements = config.reduce_bucket_mb * kMebibyte / kElementBytes;
  section.read("reduce_bucket_size", elements, 1, kLarge);
  config.reduce_bucket_mb = elements * kElementBytes / kMebibyte;
  section.ignore(kUnused, config.unused_keys);
  section.finish();
}

// Any two give the third; one gives the others with a single backward a step.
void settle_batch(Config& config, int world_size) {
  std::int64_t& whole = config.train_batch_size;
  std::int64_t& micro = config.train_micro_batch_size_per_gpu;
  std::int64_t& steps = config.gradient_accumulation_steps;
  const std::int64_t world = world_size;
  if (whole == 0 && micro == 0) {
    refuse(
        "train_batch_size, train_micro_batch_size_per_gpu: expected at least one of them, both are "
        "missing");
  }
  if (whole != 0 && micro != 0 && steps == 0) steps = whole / (micro * world);
  if (steps == 0 && (whole == 0 || micro == 0)) steps = 1;
  if (micro == 0) micro = whole / (steps * world);
  if (whole == 0) whole = micro * steps * world;
  if (micro * steps * world == whole && micro > 0 && steps > 0) return;
  refuse(
      "train_batch_size: {} is not train_micro_batch_size_per_gpu * gradient_accumulation_steps * "
      "workers = {} * {} * {} = {}",
      whole, micro, steps, world, micro * steps * world);
}

}  // namespace

Config parse_config(const json& root, int world_size) {
  constexpr std::string_view kUnused[] = {"prescale_gradients",
                                          "gradient_predivide_factor",
                                          "sparse_gradients",
                                          "communication_data_type",
                                          "seq_parallel_communication_data_type",
                                          "dump_state",
                                          "memory_breakdown",
                                          "zero_allow_untested_optimizer",
                                          "zero_force_ds_cpu_optimizer",
                                          "disable_allgather",
                                          "activation_checkpointing",
                                          "flops_profiler",
                                          "tensorboard",
                                          "wandb",
                                          "csv_monitor",
                                          "comet",
                                          "comms_logger",
                                          "autotuning",
                                          "aio",
                                          "checkpoint",
                                          "data_types",
                                          "elasticity",
                                          "amp",
                                          "compression_training",
                                          "data_efficiency",
                                          "curriculum_learning"};
  Section section(root, "");
  Config config;
  section.read("train_batch_size", config.train_batch_size, 1);
  section.read("train_micro_batch_size_per_gpu", config.train_micro_batch_size_per_gpu, 1);
  section.read("gradient_accumulation_steps", config.gradient_accumulation_steps, 1);
  section.read("gradient_clipping", config.gradient_clipping, 0, kLarge);
  section.read("steps_per_print", config.steps_per_print, 1);
  section.read("wall_clock_breakdown", config.wall_clock_breakdown);
  if (const auto* const found = section.find("optimizer"))
    config.optimizer = parse_optimizer(*found);
  if (const auto* const found = section.find("scheduler"))
    config.scheduler = parse_scheduler(*found);
  if (const auto* const found = section.find("fp16"))
    config.fp16 = parse_fp16(*found, config.unused_keys);
  if (const auto* const found = section.find("bf16")) {
    constexpr std::string_view kUnusedOfBf16[] = {"immediate_grad_update", "check_grad_overflow"};
    Section bf16(*found, "bf16");
    bf16.read("enabled", config.bf16);
    bf16.ignore(kUnusedOfBf16, config.unused_keys);
    bf16.finish();
  }
  if (const auto* const found = section.find("zero_optimization")) parse_zero(*found, config);
  section.ignore(kUnused, config.unused_keys);
  section.finish();
  if (config.bf16 && config.fp16.enabled)
    refuse("bf16.enabled, fp16.enabled: expected one of them at most, both are true");
  if (config.zero_stage == 1 && config.fp16.enabled) {
    refuse(
        "zero_optimization.stage: expected 0 with fp16, it is 1: fp16 needs a GPU, and stage 1 "
        "divides what is on the CPU; bf16 works with both");
  }
  settle_batch(config, world_size);
  return config;
}

Config read_config(const std::string& path, int world_size) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!(text << in.rdbuf())) refuse("the configuration {} cannot be read", path);
  try {
    return parse_config(json::parse(text.str()), world_size);
  } catch (const json::parse_error& wrong) {
    refuse("the configuration {} is not JSON: {}", path, wrong.what());
  } catch (const std::invalid_argument& wrong) {
    refuse("{}: {}", path, wrong.what());
  }
}

}  // namespace ddp::engine
