#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/bucket_route.h"
#include "worker/ddp/logical_ranks.h"
#include "worker/ddp/trace.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"
#include "worker/train/dataset.h"
#include "worker/train/logical_replica.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"
#include "worker/train/progress.h"
#include "worker/train/rate_log.h"
#include "worker/train/replica.h"
#include "worker/train/sampler.h"
#include "worker/train/summary.h"
#include "worker/train/throughput.h"
#include "worker/train/train_state.h"
#include "worker/train/training_checkpoint.h"

namespace ddp::train {

// Trains one model from the first step, or from the newest checkpoint, to the last. Made alike on
// all ranks; one thread; construction and run are collective.
//
// Exact resuming: what a step computes depends on the parameters, buffers, momenta, generators and
// the TrainState after the step before, and on the options; the learning rate is a function of the
// TrainState. A checkpoint of step k holds all of
// these as they are after step k, so it does not matter whether this process took the steps before
// or one that is gone.
//
// Throws Failure with the exit status, CollectiveError if another rank is gone.
class Trainer {
 public:
  struct Parts {
    Options options;
    Datasets data;
    std::shared_ptr<ProcessGroup> group;
    // The model's devices, and the groups for memory of those that are not the CPU.
    std::vector<c10::Device> devices;
    std::vector<DeviceGroup> device_groups;
    ControlChannel& channel;
    ProgressPrinter* printer = nullptr;  // Not owned; nullptr: says nothing.
    int threads = 1;                     // Of LibTorch, set by the caller.
  };

  // Makes the model from the seed and verifies it across ranks. kExitInvalidValue if the training
  // set is smaller than one joint batch.
  explicit Trainer(Parts parts);

  // Resumes if there is something to resume, trains, evaluates. The summary lacks restarts, rounds
  // and BLAS.
  Summary run();

 private:
  void make_replica();
  void resume();
  void open_rate_log();
  bool train_epoch();  // Whether it came to the epoch's end; else --max-steps did.
  double train_step(std::span<const std::int64_t> indices);
  double logical_ranks_step(std::int64_t joint);
  double backwards(std::span<const std::int64_t> indices, std::int64_t joint);
  double backward(std::span<const std::int64_t> indices, std::int64_t joint);
  void evaluate_if_due();
  void save_if_due();
  void finish_epoch();
  void evaluate();
  double mean_loss();
  void report(double loss, std::int64_t samples, double seconds);
  void log_rate(double loss, std::int64_t samples, double seconds);
  void write_trace();
  void check_same_weights(const std::string& sha256);
  bool limit_reached() const;
  std::int64_t steps_to_go() const;
  // Ranks that the training is defined for: logical ones, else workers.
  int ranks() const;
  void say(const std::string& text);

  Parts parts_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<LogicalRanks> logical_ranks_;  // With --logical-world-size.
  std::unique_ptr<Replica> replica_;
  LogicalReplica* logical_ = nullptr;  // replica_, with --logical-world-size.
  std::shared_ptr<Trace> trace_;       // Null without --trace.
  std::optional<DistributedSampler> sampler_;
  std::unique_ptr<TrainingCheckpoint> checkpoint_;
  TrainState state_;
  Throughput throughput_;
  std::unique_ptr<RateLog> rate_log_;  // Null without --rates, and on all ranks but 0.
  double learning_rate_ = 0;           // Of the last step.
  Batch batch_;
  std::int64_t resumed_from_ = 0;
  double train_loss_ = 0;  // Of the epoch that ended last.
  std::optional<double> test_accuracy_;
};

}  // namespace ddp::train
