#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/result.h"

namespace ddp::train {

// The result of a training, as --summary writes it.
struct Summary {
  std::string model;
  std::string data;
  int world_size = 1;
  std::int64_t epochs = 0;              // Completed.
  std::int64_t steps = 0;               // Of the whole training, in all processes.
  double train_loss = 0;                // Mean over the samples of the last epoch, of all workers.
  std::optional<double> test_accuracy;  // null for a model that does not classify.
  std::string weights_sha256;
  double samples_per_second = 0;  // Of all workers in steps, since the last start.
  std::int64_t restarts = 0;
  std::int64_t rounds = 1;
  // The step from which the last round continued, from memory or a checkpoint; 0: the beginning.
  std::int64_t resumed_from_step = 0;
  std::string grad_sync;
  std::uint64_t seed = 0;
  std::int64_t batch_size = 0;
  std::string blas;
  int threads = 1;
};

// One JSON object; a NaN or infinite loss is null.
std::string to_json(const Summary& summary);

// Checks before training that `path` can be written, so that a wrong path is found in time. kIo.
Result<void> check_summary_path(const std::string& path);

// Writes the object to `path` by renaming, so a reader sees either the old file or the whole new
// one. kIo with the path and the system's reason.
Result<void> write_summary(const std::string& path, const Summary& summary);

}  // namespace ddp::train
