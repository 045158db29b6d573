#include "worker/train/option_checks.h"

#include <initializer_list>
#include <string>

#include "worker/train/models/names.h"

namespace ddp::train {
namespace {

// The flags make sense only if `condition` holds; `needed` says what that takes.
void need(const FlagValues& values, std::initializer_list<const char*> flags, bool condition,
          const char* needed) {
  if (condition) return;
  for (const char* flag : flags) {
    if (values.has(flag)) throw BadValue{fmt::format("--{}: expected {} with it", flag, needed)};
  }
}

void check_model(const FlagValues& values, const Options& options) {
  need(values, {"no-batch-norm", "dropout"}, options.model == "mnist", "--model mnist");
  need(values, {"image-size", "num-classes"}, is_resnet(options.model),
       "--model resnet18, resnet50 or resnet50-model-parallel");
  need(values, {"micro-batches"}, is_model_parallel(options.model),
       "--model toy-model-parallel or resnet50-model-parallel");
  if (options.micro_batches > options.batch_size) {
    throw BadValue{fmt::format("--micro-batches {}: expected at most --batch-size, which is {}",
                               options.micro_batches, options.batch_size)};
  }
}

void check_data(const FlagValues& values, Options& options) {
  const bool only_fake = !is_for_digits(options.model);
  if (options.data.empty()) options.data = only_fake ? "fake" : "synthetic";
  if (only_fake && options.data != "fake") {
    throw BadValue{fmt::format("--data {}: expected fake, the only data of --model {}",
                               options.data, options.model)};
  }
  if (options.data == "mnist" && options.data_dir.empty()) {
    throw BadValue{"--data mnist: expected --data-dir DIR with it, the folder of the IDX files"};
  }
  if (options.data != "mnist" && values.has("data-dir")) {
    throw BadValue{fmt::format("--data-dir {}: expected --data mnist with it", options.data_dir)};
  }
  need(values, {"train-samples", "test-samples"}, options.data != "mnist",
       "--data synthetic or fake, since mnist has its own size,");
}

void check_optimizer(const FlagValues& values, Options& options) {
  if (!values.has("lr")) options.lr = default_lr(options.model);
  need(values, {"momentum"}, options.optimizer == OptimizerKind::kSgd, "--optimizer sgd");
  need(values, {"lr-decay-epochs", "lr-decay-factor"}, options.lr_schedule != LrSchedule::kConstant,
       "--lr-schedule step or warmup-exponential");
  need(values, {"lr-warmup-epochs"}, options.lr_schedule == LrSchedule::kWarmupExponential,
       "--lr-schedule warmup-exponential");
}

// Their gradients are averaged after the backwards of all of them, which is a way of its own.
void check_logical_ranks(const FlagValues& values, Options& options) {
  if (options.logical_world_size == 0) return;
  for (const char* flag : {"comm-hook", "bucket-cap-mb", "gradient-as-bucket-view",
                           "broadcast-buffers", "find-unused-parameters", "static-graph"}) {
    if (!values.has(flag)) continue;
    throw BadValue{fmt::format("--{}: expected not to be given with --logical-world-size", flag)};
  }
  if (values.has("grad-sync") && options.grad_sync != GradSync::kStep) {
    throw BadValue{
        fmt::format("--grad-sync {}: expected step, or nothing, with --logical-world-size",
                    to_string(options.grad_sync))};
  }
  options.grad_sync = GradSync::kStep;
  if (options.device != DeviceKind::kCpu) {
    throw BadValue{"--device cuda: expected cpu with --logical-world-size"};
  }
}

// A worker's part of the optimizer is lost with it, so the others have to go on from a checkpoint.
void check_divided_optimizer(const FlagValues& values, Options& options) {
  if (options.grad_sync != GradSync::kZero1) return;
  need(values, {"comm-hook"}, false, "--grad-sync ddp or step");
  if (values.has("elastic") && options.elastic) {
    throw BadValue{
        "--elastic on: expected off, or nothing, with --grad-sync zero1, where a lost worker's "
        "part "
        "of the optimizer is in the checkpoints only"};
  }
  options.elastic = false;
  if (options.device != DeviceKind::kCpu) {
    throw BadValue{"--device cuda: expected cpu with --grad-sync zero1"};
  }
}

}  // namespace

void check_together(const FlagValues& values, Options& options) {
  check_model(values, options);
  check_data(values, options);
  check_optimizer(values, options);
  check_logical_ranks(values, options);
  check_divided_optimizer(values, options);
  need(values, {"broadcast-buffers", "find-unused-parameters", "static-graph"},
       options.grad_sync != GradSync::kStep, "--grad-sync ddp or zero1");
  need(values,
       {"checkpoint-every", "checkpoint-keep", "checkpoint-keep-every", "checkpoint-async",
        "checkpoint-busy", "checkpoint-bandwidth", "checkpoint-failure"},
       !options.checkpoint_dir.empty(), "--checkpoint-dir DIR");
  need(values, {"load-strict"}, !options.checkpoint_dir.empty() || !options.init_from.empty(),
       "--checkpoint-dir DIR or --init-from DIR");
  need(values, {"init-names"}, !options.init_from.empty(), "--init-from DIR");
  for (const char* flag :
       {"data-dir", "checkpoint-dir", "init-from", "summary", "trace", "rates"}) {
    std::string path = "-";
    values.read(flag, path);
    if (path.empty()) throw BadValue{fmt::format("--{} '': expected a path", flag)};
  }
}

}  // namespace ddp::train
