#include "worker/train/options.h"

#include <limits>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "common/base/release.h"
#include "worker/train/flag_descriptions.h"
#include "worker/train/models/names.h"
#include "worker/train/option_checks.h"
#include "worker/train/option_values.h"

namespace ddp::train {
namespace {

constexpr std::int64_t kManySamples = 10'000'000;

constexpr const char* kModels[] = {
    "toy",   "toy-model-parallel", "gpt",      "mlp",
    "mnist", "resnet18",           "resnet50", "resnet50-model-parallel"};
constexpr const char* kDataKinds[] = {"synthetic", "fake", "mnist", "text"};

template <typename Choice>
using Named = std::pair<const char*, Choice>;

constexpr Named<OptimizerKind> kOptimizers[] = {
    {"sgd", OptimizerKind::kSgd}, {"adam", OptimizerKind::kAdam}, {"adamw", OptimizerKind::kAdamW}};
constexpr Named<LrSchedule> kLrSchedules[] = {
    {"constant", LrSchedule::kConstant},
    {"step", LrSchedule::kStep},
    {"warmup-exponential", LrSchedule::kWarmupExponential}};
constexpr Named<GradSync> kGradSyncs[] = {
    {"ddp", GradSync::kDdp}, {"step", GradSync::kStep}, {"zero1", GradSync::kZero1}};
constexpr Named<OnCheckpointFailure> kOnCheckpointFailure[] = {
    {"stop", OnCheckpointFailure::kStop}, {"continue", OnCheckpointFailure::kContinue}};
constexpr Named<DeviceKind> kDevices[] = {{"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}};

void read_model_and_data(const OptionValues& values, Options& options) {
  values.read_name("model", options.model, kModels);
  values.read("dropout", options.dropout, 0, 1, true);
  values.read<std::int64_t>("micro-batches", options.micro_batches, 1, kManySamples);
  values.read<std::int64_t>("layers", options.gpt.layers, 1, 1000);
  values.read<std::int64_t>("heads", options.gpt.heads, 1, 1000);
  values.read<std::int64_t>("width", options.gpt.width, 1, 100'000);
  values.read<std::int64_t>("context", options.gpt.context, 1, 100'000);
  values.read<std::int64_t>("sample-bytes", options.sample_bytes, 0, 1'000'000);
  values.read_name("data", options.data, kDataKinds);
  values.read("data-dir", options.data_dir);
  values.read<std::int64_t>("train-samples", options.train_samples, 1, kManySamples);
  values.read<std::int64_t>("test-samples", options.test_samples, 0, kManySamples);
  // The last layers of a ResNet see a 32nd of the image's side.
  values.read<std::int64_t>("image-size", options.image_size, 32, 4096);
  values.read<std::int64_t>("num-classes", options.num_classes, 2, 1'000'000);
}

void read_optimizer(const OptionValues& values, Options& options) {
  values.read<std::int64_t>("batch-size", options.batch_size, 1, kManySamples);
  values.read<std::int64_t>("accumulate-steps", options.accumulate_steps, 1, 1'000'000);
  values.read_switch("drop-last", options.drop_last);
  values.read<std::int64_t>("epochs", options.epochs, 1, 1'000'000'000);
  values.read<std::int64_t>("max-steps", options.max_steps, 0);
  values.read_choice<OptimizerKind>("optimizer", options.optimizer, kOptimizers);
  values.read("lr", options.lr, 0, 1e6, false);
  values.read("momentum", options.momentum, 0, 1, true);
  values.read("weight-decay", options.weight_decay, 0, 1e6, true);
  values.read_choice<LrSchedule>("lr-schedule", options.lr_schedule, kLrSchedules);
  values.read("lr-warmup-epochs", options.lr_warmup_epochs, 0, 1e9, true);
  values.read<std::int64_t>("lr-decay-epochs", options.lr_decay_epochs, 1, 1'000'000'000);
  values.read("lr-decay-factor", options.lr_decay_factor, 0, 1e9, false);
  values.read("clip-grad-norm", options.clip_grad_norm, 0, 1e30, false);
  // torch::manual_seed takes seed + rank, which must not wrap around.
  values.read<std::uint64_t>("seed", options.seed, 0, std::numeric_limits<std::uint32_t>::max());
}

void read_parallel(const OptionValues& values, Options& options) {
  values.read_choice<GradSync>("grad-sync", options.grad_sync, kGradSyncs);
  // At most the number of ranks that one sum takes (worker/collectives/kernels.cc).
  values.read<int>("logical-world-size", options.logical_world_size, 0, 1 << 15);
  values.read("comm-hook", options.comm_hook);
  values.read("bucket-cap-mb", options.bucket_cap_mb, 0, 1e6, false);
  values.read_switch("gradient-as-bucket-view", options.gradient_as_bucket_view);
  values.read_switch("broadcast-buffers", options.broadcast_buffers);
  options.find_unused_parameters = values.has("find-unused-parameters");
  options.static_graph = values.has("static-graph");
}

void read_running(const OptionValues& values, Options& options) {
  values.read("checkpoint-dir", options.checkpoint_dir);
  values.read<std::int64_t>("checkpoint-every", options.checkpoint_every, 0);
  values.read<int>("checkpoint-keep", options.checkpoint_keep, 0, 1'000'000);
  values.read<std::int64_t>("checkpoint-keep-every", options.checkpoint_keep_every, 0);
  values.read_switch("checkpoint-async", options.checkpoint_async);
  values.read("init-from", options.init_from);
  values.read("init-names", options.init_names);
  values.read("checkpoint-bandwidth", options.checkpoint_bandwidth, 0, 1e6, false);
  values.read("checkpoint-timeout", options.checkpoint_timeout, 0, 1e6, false);
  values.read_choice<OnCheckpointFailure>("checkpoint-failure", options.checkpoint_failure,
                                          kOnCheckpointFailure);
  values.read_switch("elastic", options.elastic);
  if (!values.is("commit-every", "auto")) {
    values.read<std::int64_t>("commit-every", options.commit_every, 1);
  }
  values.read_choice<DeviceKind>("device", options.device, kDevices);
  values.read<int>("threads", options.threads, 1, 4096);
  values.read("timeout", options.timeout_seconds, 0, 1e6, false);
  values.read("summary", options.summary);
  values.read("rates", options.rates);
  values.read("tensorboard", options.tensorboard);
  values.read<std::int64_t>("eval-every", options.eval_every, 0);
  values.read<std::int64_t>("log-every", options.log_every, 1);
}

std::vector<std::string> with_dashes(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    for (char& c : argument) {
      if (c == '=') break;
      if (c == '_') c = '-';
    }
  }
  return arguments;
}

const char* on_off(bool value) { return value ? "on" : "off"; }

}  // namespace

const char* to_string(DeviceKind device) { return name_of<DeviceKind>(device, kDevices); }
const char* to_string(GradSync mode) { return name_of<GradSync>(mode, kGradSyncs); }
const char* to_string(LrSchedule schedule) { return name_of<LrSchedule>(schedule, kLrSchedules); }
const char* to_string(OptimizerKind optimizer) {
  return name_of<OptimizerKind>(optimizer, kOptimizers);
}

std::string agreed_flags(const Options& options) {
  std::string text;
  const auto add = [&text](const char* flag, const auto& value) {
    text += fmt::format("--{} {}\n", flag, value);
  };
  add("model", options.model);
  add("dropout", options.dropout);
  add("micro-batches", options.micro_batches);
  add("data", options.data);
  if (is_for_text(options.model)) {
    add("layers", options.gpt.layers);
    add("heads", options.gpt.heads);
    add("width", options.gpt.width);
    add("context", options.gpt.context);
  }
  if (options.data_dir.empty()) {
    add("train-samples", options.train_samples);
    add("test-samples", options.test_samples);
  }
  add("image-size", options.image_size);
  add("num-classes", options.num_classes);
  add("batch-size", options.batch_size);
  add("accumulate-steps", options.accumulate_steps);
  add("drop-last", on_off(options.drop_last));
  add("epochs", options.epochs);
  add("max-steps", options.max_steps);
  add("eval-every", options.eval_every);
  add("optimizer", to_string(options.optimizer));
  add("lr", options.lr);
  add("momentum", options.momentum);
  add("weight-decay", options.weight_decay);
  add("lr-schedule", to_string(options.lr_schedule));
  add("lr-warmup-epochs", options.lr_warmup_epochs);
  add("lr-decay-epochs", options.lr_decay_epochs);
  add("lr-decay-factor", options.lr_decay_factor);
  add("clip-grad-norm", options.clip_grad_norm);
  add("seed", options.seed);
  add("logical-world-size", options.logical_world_size);
  add("grad-sync", to_string(options.grad_sync));
  add("comm-hook", options.comm_hook.empty() ? "none" : options.comm_hook);
  add("bucket-cap-mb", options.bucket_cap_mb);
  add("gradient-as-bucket-view", on_off(options.gradient_as_bucket_view));
  add("broadcast-buffers", on_off(options.broadcast_buffers));
  add("find-unused-parameters", on_off(options.find_unused_parameters));
  add("static-graph", on_off(options.static_graph));
  add("checkpoint-dir", options.checkpoint_dir.empty() ? "none" : "given");
  add("checkpoint-every", options.checkpoint_every);
  add("checkpoint-async", on_off(options.checkpoint_async));
  add("init-from", options.init_from.empty() ? "none" : "given");
  add("init-names", options.init_names.empty() ? "all" : options.init_names);
  add("checkpoint-failure",
      name_of<OnCheckpointFailure>(options.checkpoint_failure, kOnCheckpointFailure));
  add("elastic", on_off(options.elastic));
  add("commit-every",
      options.commit_every == 0 ? std::string("auto") : std::to_string(options.commit_every));
  add("device", to_string(options.device));
  return text;
}

ParsedOptions parse_options(int argc, const char* const* argv) {
  namespace po = boost::program_options;
  namespace style = po::command_line_style;
  const po::options_description flags = describe_flags();
  po::variables_map given;
  try {
    const auto parsed =
        po::command_line_parser(with_dashes(argc, argv))
            .options(flags)
            .style(style::allow_long | style::long_allow_next | style::long_allow_adjacent)
            .run();
    for (const auto& option : parsed.options) {
      if (option.position_key < 0) continue;
      return {
          {}, kExitUsage, fmt::format("ddp-train: {}: not a flag; see --help", option.value[0])};
    }
    po::store(parsed, given);
  } catch (const po::error& error) {
    return {{}, kExitUsage, fmt::format("ddp-train: {}; see --help", error.what())};
  }
  if (given.count("help") != 0) return {{}, kExitSuccess, help_text()};
  if (given.count("version") != 0)
    return {{}, kExitSuccess, fmt::format("ddp-train {}\n", release())};
  Options options;
  const OptionValues values(given);
  try {
    read_model_and_data(values, options);
    read_optimizer(values, options);
    read_parallel(values, options);
    read_running(values, options);
    check_together(values, options);
  } catch (const BadValue& bad) {
    return {{}, kExitInvalidValue, "ddp-train: " + bad.text};
  }
  return {options, kExitSuccess, ""};
}

}  // namespace ddp::train
