#pragma once

#include "worker/ddp/trainer/metric_sums.h"
#include "worker/ddp/trainer/trainer_module.h"

namespace ddp::trainer {

// What a rank has logged in a module's steps.
struct LogSink {
  MetricSums step;        // Since the last update.
  MetricSums epoch;       // Since the epoch or the evaluation began.
  MetricValues progress;  // Of the last call with prog_bar.
  double batch_size = 0;
};

// While it lives, the module's log() goes to the sink.
class LogScope {
 public:
  LogScope(TrainerModule& module, LogSink& sink) : module_(module) { module_.log_to(&sink); }
  ~LogScope() { module_.log_to(nullptr); }
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  TrainerModule& module_;
};

}  // namespace ddp::trainer
