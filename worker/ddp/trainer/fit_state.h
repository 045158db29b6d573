#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/data/throughput.h"
#include "worker/ddp/loop/training_loop.h"
#include "worker/ddp/trainer/log_sink.h"

namespace ddp::trainer {

// Where a training is, beside the module and its optimizer.
struct FitState : loop::LoopState {
  // In every checkpoint.
  bool stopped = false;
  std::string stop_reason;
  MetricValues metrics;
  MetricValues validation_metrics;
  // Of this process.
  // Batches of the epoch that each rank has used, or would have if there had always been so many.
  std::int64_t batches = 0;
  bool validates = false;
  LogSink sink;  // What this rank has logged; `epoch` is in checkpoints, by rank.
  bool logs_this_step = false;
  double last_loss = 0;
  std::vector<double> learning_rates;
  std::int64_t total_steps = 0;
  std::int64_t total_epochs = 0;
  Throughput throughput;
};

}  // namespace ddp::trainer
