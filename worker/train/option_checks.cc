#include "worker/train/option_checks.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include <fmt/ranges.h>

#include "worker/train/models/names.h"

namespace ddp::train {
namespace {

// Refuses the flags unless `condition` holds; `needed` is what to give with them.
void need(const OptionValues& values, std::initializer_list<const char*> flags, bool condition,
          const char* needed) {
  if (condition) return;
  for (const char* flag : flags) {
    if (values.has(flag)) throw BadValue{fmt::format("--{}: needs {}", flag, needed)};
  }
}

void check_model(const OptionValues& values, const Options& options) {
  need(values, {"dropout"}, options.model == "mnist", "--model mnist");
  need(values, {"image-size", "num-classes"}, is_resnet(options.model),
       "--model resnet18, resnet50 or resnet50-model-parallel");
  need(values, {"micro-batches"}, is_model_parallel(options.model),
       "--model toy-model-parallel or resnet50-model-parallel");
  need(values, {"layers", "heads", "width", "context", "sample-bytes"}, is_for_text(options.model),
       "--model gpt");
  if (options.gpt.width % options.gpt.heads != 0) {
    throw BadValue{fmt::format("--heads {}: expected a divisor of --width, which is {}",
                               options.gpt.heads, options.gpt.width)};
  }
  if (options.micro_batches > options.batch_size) {
    throw BadValue{fmt::format("--micro-batches {}: expected at most --batch-size, which is {}",
                               options.micro_batches, options.batch_size)};
  }
}

// The first is the default.
std::span<const std::string_view> data_for(std::string_view model) {
  static constexpr std::array<std::string_view, 3> kOfDigits = {"synthetic", "fake", "mnist"};
  static constexpr std::array<std::string_view, 2> kOfText = {"synthetic", "text"};
  static constexpr std::array<std::string_view, 1> kOfOthers = {"fake"};
  if (is_for_digits(model)) return kOfDigits;
  if (is_for_text(model)) return kOfText;
  return kOfOthers;
}

void check_data(const OptionValues& values, Options& options) {
  const std::span<const std::string_view> possible = data_for(options.model);
  if (options.data.empty()) options.data = possible.front();
  if (std::find(possible.begin(), possible.end(), options.data) == possible.end()) {
    throw BadValue{fmt::format("--data {}: expected {} with --model {}", options.data,
                               fmt::join(possible, " or "), options.model)};
  }
  const bool is_read = options.data == "mnist" || options.data == "text";
  if (is_read && options.data_dir.empty()) {
    throw BadValue{fmt::format("--data {}: needs --data-dir, {}", options.data,
                               options.data == "mnist" ? "the folder of the IDX files"
                                                       : "a text file or a folder of text files")};
  }
  if (!is_read && values.has("data-dir")) {
    throw BadValue{
        fmt::format("--data-dir {}: needs --data mnist or --data text", options.data_dir)};
  }
  need(values, {"train-samples", "test-samples"}, !is_read,
       "--data synthetic or fake; the size of mnist and text is fixed");
}

void check_optimizer(const OptionValues& values, Options& options) {
  if (is_for_text(options.model) && !values.has("optimizer")) {
    options.optimizer = OptimizerKind::kAdamW;
  }
  if (!values.has("lr")) options.lr = default_lr(options.model);
  need(values, {"momentum"}, options.optimizer == OptimizerKind::kSgd, "--optimizer sgd");
  need(values, {"lr-decay-epochs", "lr-decay-factor"}, options.lr_schedule != LrSchedule::kConstant,
       "--lr-schedule step or warmup-exponential");
  need(values, {"lr-warmup-epochs"}, options.lr_schedule == LrSchedule::kWarmupExponential,
       "--lr-schedule warmup-exponential");
}

// Gradients of logical ranks are averaged after the backwards of all of them, in a way of its own,
// so the flags of the other ways do not apply.
void check_logical_ranks(const OptionValues& values, Options& options) {
  if (options.logical_world_size == 0) return;
  for (const char* flag : {"comm-hook", "bucket-cap-mb", "gradient-as-bucket-view",
                           "broadcast-buffers", "find-unused-parameters", "static-graph"}) {
    if (!values.has(flag)) continue;
    throw BadValue{fmt::format("--{}: cannot be used with --logical-world-size", flag)};
  }
  if (values.has("grad-sync") && options.grad_sync != GradSync::kStep) {
    throw BadValue{
        fmt::format("--grad-sync {}: with --logical-world-size, use step or leave it out",
                    to_string(options.grad_sync))};
  }
  options.grad_sync = GradSync::kStep;
  if (options.device != DeviceKind::kCpu) {
    throw BadValue{"--device cuda: cannot be used with --logical-world-size; use --device cpu"};
  }
}

// A lost worker takes its part of the optimizer state with it, so the others must continue from a
// checkpoint.
void check_divided_optimizer(const OptionValues& values, Options& options) {
  if (options.grad_sync != GradSync::kZero1) return;
  need(values, {"comm-hook"}, false, "--grad-sync ddp or step");
  if (values.has("elastic") && options.elastic) {
    throw BadValue{
        "--elastic on: cannot be used with --grad-sync zero1; only checkpoints have a lost "
        "worker's "
        "part of the optimizer state"};
  }
  options.elastic = false;
  if (options.device != DeviceKind::kCpu) {
    throw BadValue{"--device cuda: cannot be used with --grad-sync zero1; use --device cpu"};
  }
}

}  // namespace

void check_together(const OptionValues& values, Options& options) {
  check_model(values, options);
  check_data(values, options);
  check_optimizer(values, options);
  check_logical_ranks(values, options);
  check_divided_optimizer(values, options);
  need(values, {"broadcast-buffers", "find-unused-parameters", "static-graph"},
       options.grad_sync != GradSync::kStep, "--grad-sync ddp or zero1");
  need(values,
       {"checkpoint-every", "checkpoint-keep", "checkpoint-keep-every", "checkpoint-async",
        "checkpoint-bandwidth", "checkpoint-timeout", "checkpoint-failure"},
       !options.checkpoint_dir.empty(), "--checkpoint-dir DIR");
  need(values, {"init-names"}, !options.init_from.empty(), "--init-from DIR");
  for (const char* flag :
       {"data-dir", "checkpoint-dir", "init-from", "summary", "rates", "tensorboard"}) {
    std::string path = "-";
    values.read(flag, path);
    if (path.empty()) throw BadValue{fmt::format("--{} '': expected a path", flag)};
  }
}

}  // namespace ddp::train
