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
#include "worker/data/throughput.h"
#include "worker/ddp/averaging/bucket_route.h"
#include "worker/ddp/diloco/local_replica.h"
#include "worker/ddp/logical/logical_ranks.h"
#include "worker/ddp/loop/training_loop.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"
#include "worker/train/dataset.h"
#include "worker/train/logical_replica.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"
#include "worker/train/rate_log.h"
#include "worker/train/summary.h"
#include "worker/train/tensorboard_log.h"
#include "worker/train/train_state.h"
#include "worker/train/training_checkpoint.h"

namespace ddp::train {

// Trains one model to the last step, from the first one or from the newest checkpoint. Construct it
// alike on all ranks; one thread. The model, the optimizer and the position in the training live as
// long as the object. Everything that holds a process group lives for one round, so with an
// ElasticState training continues in the next round. run() is collective.
//
// Exact resume: a step depends only on the options and on the parameters, buffers, momenta,
// generators and TrainState after the step before; the learning rate is a function of the
// TrainState. A checkpoint of step k holds all of these as they are after step k, so it does not
// matter which process computed the steps before. That of an epoch's last step is written before
// end_epoch(), so a run that resumes from it also comes there.
//
// Throws TrainingFailure with the exit status, CollectiveError if another rank is lost.
class Training final : private loop::TrainingLoop {
 public:
  struct Parts {
    Options options;
    Datasets data;
    std::vector<c10::Device> devices;  // The model's.
    ControlChannel& channel;
  };
  struct Round {
    std::shared_ptr<ProcessGroup> group;
    std::vector<DeviceGroup> device_groups;  // For tensors on other devices than the CPU.
    ProgressPrinter* printer = nullptr;      // Not owned; nullptr: prints nothing.
    int threads = 1;                         // LibTorch's number of threads; the caller sets it.
    std::int64_t restarts = 0;
  };

  // Makes the model from the seed.
  explicit Training(Parts parts);

  // Registers everything that must outlive a round with `elastic`, which must outlive this object.
  // Call it once, before run().
  void keep_in(ElasticState& elastic);

  // One round: compares the model across ranks, resumes if there is something to resume, trains to
  // the end and evaluates. kExitInvalidValue if the training set is smaller than the joint batch of
  // all ranks. The summary lacks restarts, rounds and BLAS. The group is released on return and on
  // an exception.
  Summary run(Round round);

 private:
  void start_over() override;
  void make_round() override;
  void resume(bool goes_on) override;
  void leave_round() override;
  void begin_step() override;
  at::Tensor loss_of(std::span<const std::int64_t> samples, bool counts) override;
  double backwards(std::span<const std::int64_t> samples, std::int64_t joint) override;
  bool after_step(const loop::StepReport& report) override;
  void end_epoch() override;
  void save_checkpoint() override;
  void stop_if_told() override;

  void make_replica();
  void make_checkpoint();
  void open_logs();
  void log_checkpoints();
  double logical_ranks_step(std::int64_t joint);
  void evaluate_if_due();
  void evaluate();
  double mean_loss();
  void report(const loop::StepReport& step);
  void log(const loop::StepReport& step);
  void log_accuracy();
  void note(const char* flag, const Result<void>& written);
  Summary finish();
  void say_sample();
  void check_same_weights(const std::string& sha256);
  std::int64_t steps_to_go() const;
  void say(const std::string& text);

  Parts parts_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<LogicalRanks> logical_ranks_;  // With --logical-world-size.
  nlohmann::json averager_state_;              // As of the last commit.
  TrainState state_;
  Throughput throughput_;
  double learning_rate_ = 0;  // Of the last step.
  Batch batch_;
  std::int64_t resumed_from_ = 0;
  std::shared_ptr<CheckpointWriter> checkpoint_writer_;  // Null without checkpoints.

  // Of the round.
  Round round_;
  LogicalReplica* logical_ = nullptr;  // The same as replica_ with --logical-world-size, else null.
  std::unique_ptr<TrainingCheckpoint> checkpoint_;  // Null without checkpoints.
  std::shared_ptr<LocalReplica> own_state_;         // If ranks differ after steps.
  // Without --rates or --tensorboard, and on all ranks but 0, empty.
  std::unique_ptr<RateLog> rate_log_;
  std::optional<TensorBoardLog> tensorboard_;
  double train_loss_ = 0;  // Of the epoch that ended last.
  std::optional<double> test_accuracy_;
};

}  // namespace ddp::train
