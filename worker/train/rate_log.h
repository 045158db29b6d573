#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::train {

// One step, as the training loop knows it when the step is over.
struct StepRecord {
  std::int64_t epoch = 0;  // From 0.
  std::int64_t step = 0;   // Of the whole training, done.
  double loss = 0;
  double learning_rate = 0;
  std::int64_t samples = 0;  // Of all workers.
  double seconds = 0;        // That the step took.
};

// How fast training goes, as --rates writes it: one JSON object a line for every `every` steps of
// this process,
//
//   {"epoch": 1, "step": 20, "loss": 2.31, "learning_rate": 0.02, "steps": 20, "samples": 5120,
//    "seconds": 0.081, "samples_per_second": 63210, "cpu_seconds": 0.079}
//
// where epoch counts from 1, loss is that of the last step on this rank, samples are those of all
// workers since the line before, and seconds the time of their steps: evaluations and checkpoints
// lie between steps. cpu_seconds, which neighbours on the machine disturb less, is what all threads
// of this process used since the line before, between steps too. A NaN or infinite loss is null.
//
// and for every test accuracy that --eval-every asks for
//
//   {"epoch": 1, "step": 40, "test_accuracy": 0.912}
//
// Steps at the end that are fewer than `every` get no line: a mean over fewer steps varies more. A
// resumed training appends; what was taken back is there twice, with the same numbers of steps.
// One thread.
class RateLog {
 public:
  // Opens the file, empty unless `append`. kIo with the path and the system's reason.
  static Result<std::unique_ptr<RateLog>> open(const std::string& path, bool append,
                                               std::int64_t every);

  // Writes a line when it is time. kIo once, at the first line that cannot be written; none is
  // tried after that, and training goes on.
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
