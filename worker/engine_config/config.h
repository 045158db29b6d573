#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

// The configuration of ddp::initialize (engine.h), without LibTorch: those of DeepSpeed's keys that
// have an effect here.
namespace ddp::engine {

struct OptimizerConfig {
  std::string type;  // "Adam", "AdamW", "SGD", "Adagrad" or "RMSprop".
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool amsgrad = false;
};

struct SchedulerConfig {
  enum class Type { kWarmup, kWarmupDecay, kWarmupCosine };
  enum class Rise { kLog, kLinear };
  Type type = Type::kWarmup;
  double warmup_min_lr = 0;
  double warmup_max_lr = 1e-3;
  std::int64_t warmup_num_steps = 1000;
  Rise warmup_type = Rise::kLog;
  std::int64_t total_num_steps = 0;  // Of kWarmupDecay and kWarmupCosine.
  double warmup_min_ratio = 0;       // Of kWarmupCosine, whose rates are shares of the optimizer's.
  double cos_min_ratio = 1e-4;
};

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  // 0: dynamic, beginning with 2^initial_scale_power.
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  double min_loss_scale = 1;
};

struct Config {
  // train_batch_size: samples per step over all workers. It is the product of
  // train_micro_batch_size_per_gpu (samples per backward of one worker),
  // gradient_accumulation_steps (backwards per step) and the number of workers.
  std::int64_t train_batch_size = 0;
  std::int64_t train_micro_batch_size_per_gpu = 0;
  std::int64_t gradient_accumulation_steps = 0;
  double gradient_clipping = 0;  // 0: none.
  std::optional<OptimizerConfig> optimizer = std::nullopt;
  std::optional<SchedulerConfig> scheduler = std::nullopt;
  Fp16Config fp16 = {};
  bool bf16 = false;
  int zero_stage = 0;  // 0 or 1.
  double reduce_bucket_mb = 25;
  std::int64_t steps_per_print = 10;
  bool wall_clock_breakdown = false;
  // Keys of DeepSpeed's that have no effect here, to tell the user.
  std::vector<std::string> unused_keys = {};
};

// Throws std::invalid_argument naming the key with its path ("zero_optimization.stage"), the value
// and what is valid: for values of a wrong type or out of range, batch sizes that contradict each
// other (with the product written out), and keys that neither DeepSpeed nor this library knows
// (with the nearest known one).
Config parse_config(const nlohmann::json& root, int world_size);

// The same for a file. Throws std::invalid_argument, naming the path and the place, if it cannot be
// read or is not JSON.
Config read_config(const std::string& path, int world_size);

}  // namespace ddp::engine
