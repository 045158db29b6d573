#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/data/progress.h"
#include "worker/ddp/hooks/hook_text.h"
#include "worker/ddp/state/run_elastic.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/elastic_worker.h"
#include "worker/runtime/freed_memory.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/worker_environment.h"
#include "worker/train/agreement.h"
#include "worker/train/cpu_threads.h"
#include "worker/train/dataset.h"
#include "worker/train/device.h"
#include "worker/train/exactness.h"
#include "worker/train/models/names.h"
#include "worker/train/options.h"
#include "worker/train/summary.h"
#include "worker/train/training.h"
#include "worker/train/training_failure.h"

namespace ddp::train {
namespace {

// One worker, from its start to its exit status.
class Worker {
 public:
  explicit Worker(Options options) : options_(std::move(options)) {}

  // Returns the exit status.
  int run() {
    try {
      begin();
      train();
      return kExitSuccess;
    } catch (const TrainingFailure& failure) {
      // Once there is a group, all ranks fail alike, so one rank prints.
      return fail(failure.exit_status, failure.what(), rank() == 0 || !in_group_);
    } catch (const CollectiveError& error) {
      const bool secondary = error.code == Errc::kAborted || error.code == Errc::kPeerLost ||
                             error.code == Errc::kTimeout ||
                             (error.suspect_rank >= 0 && error.suspect_rank != rank());
      return fail(kExitCollectiveFailed, error.what(), true, secondary);
    } catch (const StateLost& lost) {
      return fail(kExitCollectiveFailed, lost.what(), rank() == 0, true);
    } catch (const std::exception& error) {
      return fail(kExitInternal, fmt::format("internal error: {}", error.what()), true);
    }
  }

 private:
  void begin() {
    ElasticWorkerOptions options;
    options.reconfigurable = options_.elastic;
    options.group.timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(options_.timeout_seconds * 1000) + 1);
    try {
      worker_.emplace(options);
    } catch (const std::invalid_argument& wrong) {
      throw TrainingFailure(kExitInvalidValue, wrong.what());
    }
  }

  void train() {
    // Before wait_for_place(), so that a standby already has its data when it is needed.
    auto data = make_datasets(options_);
    if (!data) readable_ = data.error();
    worker_->wait_for_place();
    use_threads();
    ElasticState state;  // Outlives the trainer.
    Training trainer({.options = options_,
                      .data = data ? *std::move(data) : Datasets(),
                      .devices = model_devices(options_),
                      .channel = worker_->channel()});
    if (!worker_->reconfigurable()) {
      train_round(trainer, join());
      return;
    }
    trainer.keep_in(state);
    run_elastic(*worker_, state, [&](const std::shared_ptr<ProcessGroup>& group) {
      in_group_ = true;
      use_threads();
      train_round(trainer, group);
    });
  }

  std::shared_ptr<ProcessGroup> join() {
    try {
      auto group = worker_->join();
      in_group_ = true;
      return group;
    } catch (const std::invalid_argument& wrong) {
      throw TrainingFailure(kExitInvalidValue, wrong.what());
    }
  }

  void train_round(Training& trainer, const std::shared_ptr<ProcessGroup>& group) {
    check_output(*group, "--summary", options_.summary);
    check_output(*group, "--rates", options_.rates);
    agree_or_fail(*group, readable_, kExitDataInvalid, fmt::format("--data {}", options_.data));
    const std::vector<DeviceGroup> device_groups =
        make_device_groups(options_, model_devices(options_), group);
    for (const DeviceGroup& beside : device_groups) worker_->attach(beside.group);
    const bool prints = group->rank() == 0;
    Summary summary = trainer.run({.group = group,
                                   .device_groups = device_groups,
                                   .printer = prints ? &printer_ : nullptr,
                                   .threads = threads_,
                                   .restarts = restarts()});
    if (prints) publish(summary);
  }

  std::int64_t restarts() const { return worker_->variable_or("TORCHELASTIC_RESTART_COUNT", 0); }
  std::int64_t rank() const { return worker_ ? worker_->variable_or("RANK", 0) : 0; }

  // Rank 0 writes the file at the end; this finds out early whether it can.
  static void check_output(ProcessGroup& group, const char* flag, const std::string& path) {
    Result<void> writable;
    if (group.rank() == 0 && !path.empty()) writable = check_summary_path(path);
    agree_or_fail(group, writable, kExitInvalidValue, flag);
  }

  // The number of threads decides the last bits of sums, so it is fixed before anything is
  // computed.
  void use_threads() {
    threads_ = options_.threads;
    // A default that depends on the number of workers would change the bytes.
    if (threads_ == 0 && options_.logical_world_size > 0) threads_ = 1;
    if (threads_ == 0) {
      const std::int64_t stages = is_model_parallel(options_.model) ? 2 : 1;
      threads_ =
          default_threads(static_cast<int>(worker_->variable_or("LOCAL_WORLD_SIZE", 1) * stages));
    }
    at::set_num_threads(threads_);
    if (!std::exchange(interop_set_, true)) at::set_num_interop_threads(1);
    set_blas_threads(threads_);
    compute_exactly();
  }

  void publish(Summary& summary) {
    summary.restarts = restarts();
    summary.rounds = worker_->variable_or("DDP_ROUND", 0) + 1;
    summary.blas = loaded_blas();
    std::string text =
        fmt::format("done: {} steps, train loss {:.4f}", summary.steps, summary.train_loss);
    if (summary.test_accuracy)
      text += fmt::format(", test accuracy {:.2f} %", 100 * *summary.test_accuracy);
    printer_.line(fmt::format("{}, {:.0f} samples/s, weights_sha256 {}", text,
                              summary.samples_per_second, summary.weights_sha256));
    if (options_.summary.empty()) return;
    if (const auto written = write_summary(options_.summary, summary); !written) {
      throw TrainingFailure(kExitInvalidValue, "--summary " + written.error().message);
    }
  }

  int fail(int status, const std::string& text, bool print, bool secondary = false) {
    if (print) fmt::print(stderr, "ddp-train: {}\n", text);
    if (worker_) {
      worker_->channel().error(text, secondary);
      worker_->abort(fmt::format("rank {}: {}", rank(), text));
    }
    return status;
  }

  Options options_;
  ProgressPrinter printer_{stdout, ::isatty(STDOUT_FILENO) != 0, options_.log_every};
  std::optional<ElasticWorker> worker_;
  Result<void> readable_;  // Error if the data cannot be read.
  bool in_group_ = false;
  bool interop_set_ = false;  // LibTorch allows setting it only once.
  int threads_ = 1;
};

int refuse(const ParsedOptions& parsed) {
  const std::string rank = process_variable("RANK").value_or("0");
  if (rank == "0") fmt::print(stderr, "{}\n", parsed.text);
  try {
    ControlChannel::from_environment({})->error(parsed.text, false);
  } catch (const std::invalid_argument&) {
    // The environment is wrong, too; the flags are reported all the same.
  }
  return parsed.exit_status;
}

// Parses the command line and checks that its communication hook exists.
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
  prepare_exact_devices();
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
