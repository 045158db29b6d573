#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::train {

// What the training loop knows of a step after it.
struct StepRecord {
  std::int64_t epoch = 0;  // From 0.
  std::int64_t step = 0;   // Steps done in the whole training.
  double loss = 0;
  double learning_rate = 0;
  std::int64_t samples = 0;  // Of all workers.
  double seconds = 0;        // Duration of the step.
};

// Writes the file of --rates, the speed of training: one line with a JSON object for every `every`
// steps of this process,
//
//   {"epoch": 1, "step": 20, "loss": 2.31, "learning_rate": 0.02, "steps": 20, "samples": 5120,
//    "seconds": 0.081, "samples_per_second": 63210, "cpu_seconds": 0.079}
//
// epoch counts from 1. loss is that of the last step on this rank. samples counts those of all
// workers since the line before, and seconds is the time of their steps, without the evaluations
// and checkpoints between steps. cpu_seconds is what all threads of this process used since the
// line before, also between steps; other load on the machine disturbs it less. A NaN or infinite
// loss is null.
//
// Every test accuracy of --eval-every gets the line
//
//   {"epoch": 1, "step": 40, "test_accuracy": 0.912}
//
// Fewer than `every` steps at the end get no line, because a mean over fewer steps varies more. A
// resumed training appends, so steps that are done again appear twice, with the same step numbers.
// One thread.
class RateLog {
 public:
  // Opens the file, and empties it unless `append`. kIo with the path and the system's reason.
  static Result<std::unique_ptr<RateLog>> open(const std::string& path, bool append,
                                               std::int64_t every);

  // Writes a line when one is due. kIo once, for the first line that cannot be written; after that
  // nothing is written and nothing fails.
  Result<void> step(const StepRecord& record);
  // The same for a test accuracy after a step; epoch from 0.
  Result<void> accuracy(std::int64_t epoch, std::int64_t step, double accuracy);

 private:
  RateLog(std::string path, UniqueFd file, std::int64_t every);
  Result<void> write_line(const StepRecord& record);

  std::string path_;
  UniqueFd file_;
  std::int64_t every_;
  // Since the last line.
  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;
  double seconds_ = 0;
  double cpu_before_ = 0;
};

}  // namespace ddp::train
