#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The user's options, with PyTorch's names and defaults. The same on all ranks.
struct PowerSGDOptions {
  int matrix_approximation_rank = 1;        // At least 1. Tune by factors of 2.
  std::int64_t start_powerSGD_iter = 1000;  // Steps of plain averaging before; say 10 % of all.
  // A matrix is compressed if that saves more than this factor.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  // What compression lost is added to the next step's gradient.
  bool warm_start = true;          // Each step starts from the Q of the step before.
  // Added to the lengths of columns, say 1e-8. Columns of zeros need none here.
  double orthogonalization_epsilon = 0;
  std::uint64_t random_seed = 0;
  std::int64_t compression_stats_logging_frequency = 10'000;  // Steps; below 1 counts as 1.
  // Multiplies matrices of one shape in one batch. Larger buckets make larger batches.
  bool batch_tensors_with_same_shape = false;
};

// Throws std::invalid_argument for invalid options and, like PyTorch, for a start_powerSGD_iter
// below 2 with error feedback or warm start.
void check(const PowerSGDOptions& options);

// How much has been saved so far, in elements.
struct CompressionStats {
  double rate = 0;  // Before divided by after; 0 if there is nothing yet.
  std::int64_t numel_before_compression = 0;
  std::int64_t numel_after_compression = 0;
};

// State of powerSGD_hook and batched_powerSGD_hook: options, residuals, and the factors of the last
// step. One object for one model; used by the thread that runs the hook.
//
// Everything is kept by the name of the parameter, so it stays right when buckets are rebuilt.
// Random Qs come from a generator seeded with random_seed, the step and the parameter's name: the
// same on all ranks, different in each step, and independent of the buckets, so that a resumed run
// draws what an uninterrupted one would have drawn.
class PowerSGDState {
 public:
  // Throws what check() throws.
  explicit PowerSGDState(std::shared_ptr<ProcessGroup> process_group, PowerSGDOptions options = {});
  ~PowerSGDState();
  PowerSGDState(const PowerSGDState&) = delete;
  PowerSGDState& operator=(const PowerSGDState&) = delete;

  ProcessGroup& process_group() const { return *process_group_; }
  const PowerSGDOptions& options() const { return options_; }
  std::int64_t iter() const;  // Steps so far, plain ones included.

  CompressionStats compression_stats() const;
  // Called by rank 0 every compression_stats_logging_frequency steps once compression has started,
  // with a line of text. Unless set, the line goes to stderr.
  std::function<void(const std::string&)> on_stats;

  // CommHook::state and restore. Per rank: "error/" and the parameter's name, and for
  // batched_powerSGD_hook "padding/" and the bucket's key; replicated: "q/" and the name or key.
  // restore needs the options of the run that saved, except start_powerSGD_iter,
  // compression_stats_logging_frequency and options that do not change results.
  CommHookState state() const;
  void restore(const CommHookState& state);

  struct Memory;  // For the hooks.
  Memory& memory() { return *memory_; }

 private:
  std::shared_ptr<ProcessGroup> process_group_;
  PowerSGDOptions options_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace ddp
