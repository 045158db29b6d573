#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/base/result.h"
#include "worker/tensorboard/event_file.h"
#include "worker/train/rate_log.h"

namespace ddp::train {

// Writes the curves of --tensorboard: every `every` steps of the training "loss" (of this rank),
// "learning_rate", "samples_per_second" and "restarts" (of the job, so far); "test_accuracy" of
// each step after which it is measured. Of the step of each checkpoint "checkpoint_seconds", how
// long it has held the training up, and "checkpoint_write_seconds", how long it took until it was
// on the disk (CheckpointTimes). A training that was interrupted leaves the same steps as one that
// was not (EventFile). One thread.
class TensorBoardLog {
 public:
  // last_step: the step after which the training goes on; 0: it begins.
  static Result<TensorBoardLog> open(const std::string& folder, std::int64_t last_step,
                                     std::int64_t every);

  // Writes when it is time. samples_per_second: of the last steps. All of these fail once, with kIo
  // and the path, for the first record that cannot be written; after that nothing is written and
  // nothing fails.
  Result<void> step(const StepRecord& record, double samples_per_second, std::int64_t restarts);
  Result<void> accuracy(std::int64_t step, double accuracy);
  Result<void> checkpoint_held(std::int64_t step, double seconds);
  Result<void> checkpoint_written(std::int64_t step, double seconds);

 private:
  TensorBoardLog(tensorboard::EventFile file, std::int64_t every)
      : file_(std::move(file)), every_(every) {}
  Result<void> add(std::int64_t step, std::span<const tensorboard::Scalar> scalars);
  Result<void> ended(Result<void> written);

  std::optional<tensorboard::EventFile> file_;  // Empty after a failure.
  std::int64_t every_;
  std::int64_t measured_ = -1;  // The step with the last accuracy.
};

}  // namespace ddp::train
