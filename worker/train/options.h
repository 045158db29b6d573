#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/ddp/replica/grad_sync.h"
#include "worker/train/models/gpt_shape.h"

namespace ddp::train {

enum class DeviceKind { kCpu, kCuda };
enum class LrSchedule { kConstant, kStep, kWarmupExponential };
enum class OnCheckpointFailure { kStop, kContinue };
enum class OptimizerKind { kSgd, kAdam, kAdamW };

// The command line of ddp-train. A flag is named like its member, with dashes. --help is the
// reference.
struct Options {
  std::string model = "mnist";
  double dropout = 0;  // Before the last layer of mnist.
  std::int64_t micro_batches = 1;
  GptShape gpt;
  std::int64_t sample_bytes = 200;  // Length of the text that gpt prints at the end; 0: none.

  std::string data;  // If not given: the usual data of the model.
  std::string data_dir;
  std::int64_t train_samples = 12000;
  std::int64_t test_samples = 2000;
  std::int64_t image_size = 224;
  std::int64_t num_classes = 1000;

  std::int64_t batch_size = 128;  // In one backward of one rank (worker or logical rank).
  std::int64_t accumulate_steps = 1;
  bool drop_last = true;  // Drops the rest of an epoch after its last whole step.
  std::int64_t epochs = 18;
  std::int64_t max_steps = 0;  // Of the whole training, also if it is resumed; 0: no limit.
  OptimizerKind optimizer = OptimizerKind::kSgd;  // If not given: kAdamW for gpt.
  double lr = 0.01;  // Multiplied by the number of ranks. If not given: default_lr(model).
  double momentum = 0.5;
  double weight_decay = 0;
  LrSchedule lr_schedule = LrSchedule::kConstant;
  double lr_warmup_epochs = 0.9;
  std::int64_t lr_decay_epochs = 20;
  double lr_decay_factor = 5;
  double clip_grad_norm = 0;  // 0: no clipping.
  std::uint64_t seed = 1;

  int logical_world_size = 0;           // 0: each worker is one rank.
  GradSync grad_sync = GradSync::kDdp;  // kStep with logical ranks.
  std::string comm_hook;                // Empty: none.
  double bucket_cap_mb = 0;             // 0: the default of grad_sync.
  bool gradient_as_bucket_view = true;
  bool broadcast_buffers = true;
  bool find_unused_parameters = false;
  bool static_graph = false;

  std::string checkpoint_dir;         // Empty: no checkpoints.
  std::int64_t checkpoint_every = 0;  // Steps; 0: only at the end of an epoch.
  int checkpoint_keep = 3;
  std::int64_t checkpoint_keep_every = 0;  // Keeps those of steps divisible by it; 0: none.
  bool checkpoint_async = true;
  std::string init_from;            // Folder of checkpoints with the initial weights; empty: none.
  std::string init_names;           // Patterns separated by commas; empty: all.
  double checkpoint_timeout = 600;  // Seconds that a save may wait for one call to the disk.
  double checkpoint_bandwidth = 0;  // MB/s of each worker's writing; 0: as fast as the disk.
  OnCheckpointFailure checkpoint_failure = OnCheckpointFailure::kStop;

  // With an agent: this process survives the loss of others (worker/ddp/state/run_elastic.h).
  bool elastic = true;
  std::int64_t commit_every = 0;  // Most steps lost with a worker; 0: CommitPace decides.

  DeviceKind device = DeviceKind::kCpu;
  int threads = 0;  // 0: OMP_NUM_THREADS, or the usable cores shared by the workers of this node.
  double timeout_seconds = 600;  // Of a collective.
  std::string summary;           // Empty: none.
  std::string rates;             // Empty: none.
  std::string tensorboard;       // Empty: none.
  std::int64_t eval_every = 0;   // Steps; 0: only at the end of an epoch.
  std::int64_t log_every = 20;
};

const char* to_string(DeviceKind device);
const char* to_string(GradSync mode);
const char* to_string(LrSchedule schedule);
const char* to_string(OptimizerKind optimizer);

// Flags and values that must be the same on all workers of a job, one "--flag value" a line. Paths
// are left out, because they may differ between nodes.
std::string agreed_flags(const Options& options);

// Either options, or an exit status and a text to print before exiting: to standard output if the
// status is kExitSuccess (--help, --version), else to standard error. kExitUsage: the command line
// cannot be parsed. kExitInvalidValue: a value is out of range or contradicts another flag. The
// text of an error is one line that names the flag, the value and what was expected.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_status = 0;
  std::string text;
};

// `--log_every 5`, `--log-every 5` and `--log-every=5` are the same.
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace ddp::train
