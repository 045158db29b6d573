#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

#include "worker/data/progress.h"
#include "worker/data/sampler.h"
#include "worker/data/throughput.h"
#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/diloco/local_replica.h"
#include "worker/ddp/logical/logical_ranks.h"
#include "worker/ddp/replica/replica.h"
#include "worker/ddp/state/elastic_state.h"
#include "worker/ddp/tensors/trace.h"
#include "worker/runtime/checkpoint_requests.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"
#include "worker/train/dataset.h"
#include "worker/train/logical_replica.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"
#include "worker/train/rate_log.h"
#include "worker/train/summary.h"
#include "worker/train/train_state.h"
#include "worker/train/training_checkpoint.h"

namespace ddp::train {

// Trains one model from the first step, or from the newest checkpoint, to the last. Made alike on
// all ranks; one thread. The model, the optimizer and the position in the training live as long as
// the object; what has a group lives for a round, so that with an ElasticState training goes on in
// the next one. run() is collective.
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
    std::vector<c10::Device> devices;  // The model's.
    ControlChannel& channel;
    int threads = 1;  // Of LibTorch, set by the caller.
    // What belongs to a round; run() sets it.
    std::shared_ptr<ProcessGroup> group = nullptr;
    std::vector<DeviceGroup> device_groups = {};
    ProgressPrinter* printer = nullptr;
  };
  struct Round {
    std::shared_ptr<ProcessGroup> group;
    std::vector<DeviceGroup> device_groups;  // For memory of devices that are not the CPU.
    ProgressPrinter* printer = nullptr;      // Not owned; nullptr: says nothing.
    int threads = 1;
  };

  // Makes the model from the seed.
  explicit Trainer(Parts parts);

  // Registers all that must outlive a round; `elastic` outlives the object and connects it to the
  // rounds in which run() is called.
  void keep_in(ElasticState& elastic);

  // One round: verifies the model across ranks, resumes if there is something to resume, trains to
  // the end, evaluates. kExitInvalidValue if the training set is smaller than one joint batch. The
  // summary lacks restarts, rounds and BLAS. Whether it returns or throws, nothing of the group is
  // kept.
  Summary run(Round round);

 private:
  void begin_round(Round round);
  void leave_round();
  void make_sampler();
  void make_checkpoint();
  void take_up_commit();
  void start_over();
  void commit_if_due();
  Summary train_to_the_end();
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
  void stop_if_told();
  void finish_epoch();
  void evaluate();
  double mean_loss();
  void report(double loss, std::int64_t samples, double seconds);
  void log_rate(double loss, std::int64_t samples, double seconds);
  void write_trace();
  void say_sample();
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
  // Of the process; null without checkpoints.
  std::shared_ptr<CheckpointWriter> checkpoint_writer_;
  std::unique_ptr<CheckpointRequests> requests_;
  ElasticState* elastic_ = nullptr;          // Null without recovery in the process.
  std::shared_ptr<LocalReplica> own_state_;  // Of this round, where ranks differ after steps.
  nlohmann::json averager_state_;            // As the last commit has it.
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
