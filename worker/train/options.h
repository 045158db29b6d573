#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddp::train {

enum class GradSync { kDdp, kStep };
enum class OnCheckpointFailure { kStop, kContinue };

// What the command line of ddp-train asks for; the flags' names are the members' with dashes.
// --help is the reference.
struct Options {
  std::string model = "mnist";
  std::string data;  // Empty on the command line: synthetic for mnist, fake for toy.
  std::string data_dir;
  std::int64_t batch_size = 128;  // Of one worker.
  std::int64_t epochs = 18;
  std::int64_t max_steps = 0;  // Of the whole training, resumed or not; 0: no limit.
  double lr = 0.01;            // Multiplied by the world size before use.
  double momentum = 0.5;
  std::uint64_t seed = 1;
  GradSync grad_sync = GradSync::kDdp;
  std::string checkpoint_dir;         // Empty: no checkpoints.
  std::int64_t checkpoint_every = 0;  // Steps; 0: only at the end of an epoch.
  int checkpoint_keep = 3;
  OnCheckpointFailure checkpoint_failure = OnCheckpointFailure::kStop;
  std::string summary;  // Empty: none.
  std::int64_t train_samples = 12000;
  std::int64_t test_samples = 2000;
  bool batch_norm = true;
  std::int64_t log_every = 20;
  int threads = 0;  // 0: OMP_NUM_THREADS, or the usable cores shared by the workers of this node.
  double timeout_seconds = 600;  // Of a collective.
};

const char* to_string(GradSync mode);

// Flags and values that must be the same on all workers of a job, one "--flag value" a line. Paths
// are not among them, since nodes may differ in where things are.
std::string agreed_flags(const Options& options);

// Either options, or a status to exit with and a text to print before that: to standard output if
// the status is kExitSuccess (--help, --version), else to standard error. kExitUsage: the command
// line cannot be read; kExitInvalidValue: a value is out of range or contradicts another flag. The
// text is one line for errors and names the flag, the value and what would be right.
struct ParsedOptions {
  std::optional<Options> options;
  int exit_status = 0;
  std::string text;
};

// `--log_every 5`, `--log-every 5` and `--log-every=5` are the same.
ParsedOptions parse_options(int argc, const char* const* argv);

}  // namespace ddp::train
