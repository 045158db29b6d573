#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"
#include "worker/train/agreement.h"
#include "worker/train/dataset.h"
#include "worker/train/device.h"
#include "worker/train/failure.h"
#include "worker/train/machine.h"
#include "worker/train/models/names.h"
#include "worker/train/options.h"
#include "worker/train/progress.h"
#include "worker/train/summary.h"
#include "worker/train/trainer.h"

namespace ddp::train {
namespace {

// A variable of the contract between agent and worker; `absent` without an agent.
std::int64_t environment_number(const char* name, std::int64_t absent) {
  const char* text =
      std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing changes the environment.
  return text == nullptr ? absent : std::strtoll(text, nullptr, 10);
}

// The groups, for the thread of the control channel, which may want to abort them before or after
// they exist.
class AbortSwitch {
 public:
  void connect(std::shared_ptr<ProcessGroup> group) {
    const std::scoped_lock lock(mutex_);
    groups_.push_back(std::move(group));
    if (aborted_) groups_.back()->abort(reason_);
  }
  void abort(const std::string& reason) {
    const std::scoped_lock lock(mutex_);
    if (!std::exchange(aborted_, true)) reason_ = reason;
    for (const auto& group : groups_) group->abort(reason_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
  bool aborted_ = false;
  std::string reason_;
};

// One worker's life.
class Worker {
 public:
  explicit Worker(Options options) : options_(std::move(options)) {}

  // The exit status.
  int run() {
    try {
      channel_ = ControlChannel::from_environment(
          {.on_abort = [this](const std::string& reason) { abort_.abort(reason); },
           .on_commit_request = {}});
      train();
      return kExitSuccess;
    } catch (const Failure& failure) {
      // With a group, all ranks fail alike, and one line is enough.
      return fail(failure.exit_status, failure.what(), rank_ == 0 || !group_);
    } catch (const CollectiveError& error) {
      const bool secondary = error.code == Errc::kAborted || error.code == Errc::kPeerLost ||
                             error.code == Errc::kTimeout ||
                             (error.suspect_rank >= 0 && error.suspect_rank != rank_);
      return fail(kExitCollectiveFailed, error.what(), true, secondary);
    } catch (const std::exception& error) {
      return fail(kExitInternal, fmt::format("internal error: {}", error.what()), true);
    }
  }

 private:
  void train() {
    make_group();
    use_threads();
    check_output("--summary", options_.summary);
    check_output("--trace", options_.trace);
    check_output("--rates", options_.rates);
    auto data = make_datasets(options_);
    const Result<void> readable = data ? Result<void>() : Result<void>(data.error());
    agree_or_fail(*group_, readable, kExitDataInvalid, fmt::format("--data {}", options_.data));
    ProgressPrinter printer(stdout, ::isatty(STDOUT_FILENO) != 0, options_.log_every);
    const std::vector<c10::Device> devices = model_devices(options_);
    const std::vector<DeviceGroup> device_groups = make_device_groups(options_, devices, group_);
    for (const DeviceGroup& beside : device_groups) abort_.connect(beside.group);
    Trainer trainer({.options = options_,
                     .data = *std::move(data),
                     .group = group_,
                     .devices = devices,
                     .device_groups = device_groups,
                     .channel = *channel_,
                     .printer = rank_ == 0 ? &printer : nullptr,
                     .threads = threads_});
    Summary summary = trainer.run();
    if (rank_ == 0) publish(summary, printer);
  }

  // Rank 0 writes it at the end, and whether it can is found out now.
  void check_output(const char* flag, const std::string& path) {
    Result<void> writable;
    if (rank_ == 0 && !path.empty()) writable = check_summary_path(path);
    agree_or_fail(*group_, writable, kExitInvalidValue, flag);
  }

  // The number of threads decides the last bits of sums, so it is fixed before anything is
  // computed.
  void use_threads() {
    threads_ = options_.threads;
    // Not what depends on how many workers there are.
    if (threads_ == 0 && options_.logical_world_size > 0) threads_ = 1;
    if (threads_ == 0) {
      const std::int64_t stages = is_model_parallel(options_.model) ? 2 : 1;
      threads_ =
          default_threads(static_cast<int>(environment_number("LOCAL_WORLD_SIZE", 1) * stages));
    }
    at::set_num_threads(threads_);
    at::set_num_interop_threads(1);
    set_blas_threads(threads_);
    at::globalContext().setDeterministicAlgorithms(true, false);
  }

  void make_group() {
    ProcessGroupOptions options;
    options.timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(options_.timeout_seconds * 1000) + 1);
    try {
      group_ = ProcessGroup::from_environment(options);
    } catch (const std::invalid_argument& wrong) {
      throw Failure(kExitInvalidValue, wrong.what());
    }
    abort_.connect(group_);
  }

  void publish(Summary& summary, ProgressPrinter& printer) const {
    summary.restarts = environment_number("TORCHELASTIC_RESTART_COUNT", 0);
    summary.rounds = environment_number("DDP_ROUND", 0) + 1;
    summary.blas = loaded_blas();
    std::string text =
        fmt::format("done: {} steps, train loss {:.4f}", summary.steps, summary.train_loss);
    if (summary.test_accuracy)
      text += fmt::format(", test accuracy {:.2f} %", 100 * *summary.test_accuracy);
    printer.line(fmt::format("{}, {:.0f} samples/s, weights_sha256 {}", text,
                             summary.samples_per_second, summary.weights_sha256));
    if (options_.summary.empty()) return;
    if (const auto written = write_summary(options_.summary, summary); !written) {
      throw Failure(kExitInvalidValue, "--summary " + written.error().message);
    }
  }

  int fail(int status, const std::string& text, bool print, bool secondary = false) {
    if (print) fmt::print(stderr, "ddp-train: {}\n", text);
    if (channel_) channel_->error(text, secondary);
    abort_.abort(fmt::format("rank {}: {}", rank_, text));
    return status;
  }

  Options options_;
  const std::int64_t rank_ = environment_number("RANK", 0);
  std::shared_ptr<ProcessGroup> group_;
  AbortSwitch abort_;
  std::unique_ptr<ControlChannel> channel_;  // Its thread uses abort_.
  int threads_ = 1;
};

int refuse(const ParsedOptions& parsed) {
  if (environment_number("RANK", 0) == 0) fmt::print(stderr, "{}\n", parsed.text);
  try {
    ControlChannel::from_environment({})->error(parsed.text, false);
  } catch (const std::invalid_argument&) {
    // The flags are wrong whatever the environment is.
  }
  return parsed.exit_status;
}

// What the command line says, and whether its communication hook exists.
ParsedOptions parse(int argc, char** argv) {
  ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed;
  const std::string& hook = parsed.options->comm_hook;
  try {
    if (!hook.empty()) check_comm_hook_text(hook);
  } catch (const std::invalid_argument& wrong) {
    return {
        {}, kExitInvalidValue, fmt::format("ddp-train: --comm-hook {}: {}", hook, wrong.what())};
  }
  return parsed;
}

int main(int argc, char** argv) {
  keep_freed_memory();
  const ParsedOptions parsed = parse(argc, argv);
  if (!parsed.options && parsed.exit_status == kExitSuccess) {
    fmt::print("{}", parsed.text);
    if (parsed.text.starts_with("usage")) {
      fmt::print("\nCommunication hooks:\n{}", comm_hook_help());
    }
    return std::fflush(stdout) == 0 ? kExitSuccess : kExitInternal;
  }
  const int status = parsed.options ? Worker(*parsed.options).run() : refuse(parsed);
  std::fflush(nullptr);
  return status;
}

}  // namespace
}  // namespace ddp::train

int main(int argc, char** argv) { return ddp::train::main(argc, argv); }
