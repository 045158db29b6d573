#include "worker/ddp/trainer/settings.h"

#include <map>
#include <stdexcept>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>

#include "common/base/nearest.h"
#include "worker/runtime/worker_environment.h"

namespace ddp::trainer {
namespace {

template <typename Value>
const Value& choose(const std::map<std::string, Value>& choices, const char* option,
                    const std::string& typed) {
  const auto found = choices.find(typed);
  if (found != choices.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) names.push_back(name);
  const std::string_view nearest = nearest_of(typed, names);
  throw std::invalid_argument(
      fmt::format("Trainer: {} \"{}\": expected one of {}{}", option, typed, fmt::join(names, ", "),
                  nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
}

void expect(bool holds, const char* option, const std::string& value, const char* expected) {
  if (holds) return;
  throw std::invalid_argument(fmt::format("Trainer: {} {}: expected {}", option, value, expected));
}

void check_numbers(const TrainerOptions& options) {
  const auto at_least = [](std::int64_t least, const char* option, std::int64_t value) {
    expect(value >= least, option, std::to_string(value),
           fmt::format("at least {}", least).c_str());
  };
  at_least(0, "devices", options.devices);
  at_least(0, "num_nodes", options.num_nodes);
  at_least(-1, "max_epochs", options.max_epochs);
  at_least(-1, "max_steps", options.max_steps);
  at_least(1, "accumulate_grad_batches", options.accumulate_grad_batches);
  at_least(1, "check_val_every_n_epoch", options.check_val_every_n_epoch);
  at_least(1, "log_every_n_steps", options.log_every_n_steps);
  at_least(0, "checkpoint_every_n_steps", options.checkpoint_every_n_steps);
  at_least(0, "keep_checkpoints", options.keep_checkpoints);
  expect(options.gradient_clip_val >= 0, "gradient_clip_val",
         fmt::format("{}", options.gradient_clip_val), "at least 0");
  const auto amount = [](const char* option, const Amount& value) {
    expect(value.is_valid(), option, value.text(),
           "a number of batches, or a part of all from 0.0 to 1.0");
  };
  amount("val_check_interval", options.val_check_interval);
  amount("limit_train_batches", options.limit_train_batches);
  amount("limit_val_batches", options.limit_val_batches);
  amount("limit_test_batches", options.limit_test_batches);
  amount("limit_predict_batches", options.limit_predict_batches);
}

void read_strategy(const TrainerOptions& options, Settings& settings) {
  struct Strategy {
    GradSync grad_sync = GradSync::kDdp;
    bool one_process = false;
    bool data_parallel = false;
  };
  static const std::map<std::string, Strategy> kStrategies = {
      {"ddp", {}},
      {"ddp_step", {.grad_sync = GradSync::kStep}},
      {"zero1", {.grad_sync = GradSync::kZero1}},
      {"dp", {.one_process = true, .data_parallel = true}},
      {"single", {.one_process = true}}};
  const Strategy& strategy = choose(kStrategies, "strategy", options.strategy);
  settings.replica.grad_sync = strategy.grad_sync;
  settings.replica.comm_hook = options.comm_hook;
  settings.replica.ddp.gradient_as_bucket_view = true;
  settings.data_parallel = strategy.data_parallel;
  settings.workers = {options.devices, options.num_nodes, strategy.one_process, options.strategy,
                      options.max_restarts};
  if (strategy.one_process && !strategy.data_parallel && options.devices > 1) {
    throw std::invalid_argument(
        fmt::format("Trainer: strategy \"single\" with devices {}: expected one; strategy \"ddp\" "
                    "uses them all",
                    options.devices));
  }
}

void read_precision(const TrainerOptions& options, Settings& settings) {
  struct Precision {
    std::optional<at::ScalarType> type, training_type;
  };
  static const std::map<std::string, Precision> kPrecisions = {{"32", {}},
                                                               {"32-true", {}},
                                                               {"64", {at::kDouble, {}}},
                                                               {"64-true", {at::kDouble, {}}},
                                                               {"bf16-true", {at::kBFloat16, {}}},
                                                               {"bf16-mixed", {{}, at::kBFloat16}}};
  if (options.precision.starts_with("16")) {
    throw std::invalid_argument(
        fmt::format("Trainer: precision \"{}\": float16 needs losses to be scaled, which "
                    "ddp::initialize does (fp16 in its configuration) and the Trainer does not; "
                    "bf16-mixed needs none",
                    options.precision));
  }
  const Precision& precision = choose(kPrecisions, "precision", options.precision);
  settings.type = precision.type;
  settings.training_type = precision.training_type;
  if (!precision.training_type) return;
  if (options.strategy == "ddp_step" || options.strategy == "dp") {
    throw std::invalid_argument(
        fmt::format("Trainer: precision \"{}\" with strategy \"{}\": expected strategy \"ddp\", "
                    "\"zero1\" or \"single\", which compute with copies of the parameters",
                    options.precision, options.strategy));
  }
  settings.replica.ddp.mixed_precision.param_dtype = *precision.training_type;
  // Sixteen-bit sums over many ranks lose precision.
  settings.replica.ddp.mixed_precision.reduce_dtype = at::kFloat;
}

void read_accelerator(const TrainerOptions& options, Settings& settings) {
  enum class Kind { kAuto, kCpu, kGpu };
  static const std::map<std::string, Kind> kKinds = {
      {"auto", Kind::kAuto}, {"cpu", Kind::kCpu}, {"gpu", Kind::kGpu}, {"cuda", Kind::kGpu}};
  const Kind kind = choose(kKinds, "accelerator", options.accelerator);
  const bool has_gpu = at::globalContext().hasCUDART() && torch::cuda::device_count() > 0;
  if (kind == Kind::kGpu && !has_gpu) {
    throw std::invalid_argument(fmt::format(
        "Trainer: accelerator \"{}\": {}; expected \"cpu\" or \"auto\"", options.accelerator,
        at::globalContext().hasCUDART() ? "there is no CUDA device"
                                        : "this LibTorch was built without CUDA"));
  }
  settings.on_gpu = kind == Kind::kGpu || (kind == Kind::kAuto && has_gpu);
  if (settings.workers.devices > 0 || !settings.on_gpu) return;
  const bool alone = !process_variable("WORLD_SIZE");
  if (alone && options.strategy != "single") {
    settings.workers.devices = static_cast<int>(torch::cuda::device_count());
  }
}

}  // namespace

Settings read_settings(const TrainerOptions& options) {
  Settings settings;
  check_numbers(options);
  read_strategy(options, settings);
  read_precision(options, settings);
  read_accelerator(options, settings);
  return settings;
}

std::vector<c10::Device> devices_of(const Settings& settings) {
  const int count = settings.data_parallel ? std::max(settings.workers.devices, 1) : 1;
  if (!settings.on_gpu) return std::vector<c10::Device>(static_cast<std::size_t>(count), c10::kCPU);
  const int first =
      settings.data_parallel ? 0 : read_worker_environment(process_variable).local_rank;
  const auto there = static_cast<int>(torch::cuda::device_count());
  if (first + count > there) {
    throw std::invalid_argument(fmt::format(
        "Trainer: CUDA device {} is wanted, but there are only {}; start fewer workers on "
        "a node, or take accelerator \"cpu\"",
        first + count - 1, there));
  }
  std::vector<c10::Device> devices;
  for (int i = 0; i < count; ++i) {
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(first + i));
  }
  return devices;
}

}  // namespace ddp::trainer
