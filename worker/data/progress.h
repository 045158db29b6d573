#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "common/base/clock.h"

namespace ddp {

struct Progress {
  std::int64_t epoch = 0;  // From 0; printed from 1.
  std::int64_t epochs = 0;
  std::int64_t step = 0;  // Steps done in the whole training.
  std::int64_t total_steps = 0;
  double loss = 0;
  double samples_per_second = 0;  // Of all workers.
  double eta_seconds = 0;
  std::string more = {};  // Appended to the line.
};

// "epoch 2/18  step 120/828  loss 0.1234  23456 samples/s  ETA 0:41"
std::string format_progress(const Progress& progress);

// Prints progress to one stream: on a terminal as one line that is redrawn at most ten times a
// second; else as a line every `log_every` steps and at the last step. One thread.
class ProgressPrinter {
 public:
  ProgressPrinter(std::FILE* out, bool terminal, std::int64_t log_every);

  void step(const Progress& progress, TimePoint now);
  // Prints a separate line; clears the redrawn one first.
  void line(const std::string& text);

 private:
  void clear();

  std::FILE* out_;
  bool terminal_;
  std::int64_t log_every_;
  bool drawn_ = false;
  TimePoint last_{};
};

}  // namespace ddp
