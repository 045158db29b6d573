#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "worker/data/sampler.h"
#include "worker/ddp/loop/training_place.h"
#include "worker/ddp/replica/replica.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/elastic_state.h"
#include "worker/runtime/checkpoint_requests.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

namespace ddp::loop {

// Where a training is. Together with the tensors and the generators, it is all that later steps
// depend on.
struct LoopState : TrainingPlace {
  std::int64_t position = 0;  // In the epoch's permutation, as in DistributedSampler.
};

struct Plan {
  // Each round sets rank and world_size. batch_size: of all backwards of one step together, because
  // checkpoints lie between steps.
  DistributedSampler::Config sampling;
  int logical_ranks = 0;        // 0: each worker is one rank.
  std::uint64_t seed = 0;       // Each rank's generator begins with seed + rank.
  std::int64_t batch_size = 1;  // Of one backward.
  double clip_grad_norm = 0;    // 0: no clipping.
  std::int64_t max_epochs = 0;
  std::int64_t max_steps = 0;
  bool saves = false;                 // Whether there are checkpoints.
  std::int64_t checkpoint_every = 0;  // Steps; 0: only at the end of an epoch.
};

// What happened in a step.
struct StepReport {
  double loss = 0;           // The mean over this rank's samples.
  std::int64_t samples = 0;  // Of all ranks.
  double seconds = 0;
};

// Registers what every training has with the round's checkpoints: the module, the optimizer, the
// generators and the communication hook.
void add_training(Checkpointer& checkpointer, torch::nn::Module& module,
                  torch::optim::Optimizer& optimizer, Replica& replica);

// The training loop of ddp::Trainer and of ddp-train, which derive from it. It decides the order of
// everything that a resumed training depends on; what is trained, what a checkpoint has in it and
// what the user sees is the derived class's.
//
// A step: begin_step(), backwards(), clipping, the optimizer's step, after_step(); then a
// checkpoint, if one is due or asked for; then a commit, if one is due. At the end of an epoch, at
// the end of the training, and every checkpoint_every steps a checkpoint is due.
//
// With an ElasticState, training goes on in the next round. What holds a process group lives for
// one round. One thread.
class TrainingLoop {
 public:
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

 protected:
  // Both references must outlive the object.
  TrainingLoop(const Plan& plan, LoopState& state, ControlChannel& channel);
  virtual ~TrainingLoop() = default;

  // Registers the module, the optimizer and the generator with `elastic`, which must outlive the
  // rounds. Call it once, before the first round.
  void keep_in(ElasticState& elastic, torch::nn::Module& module,
               torch::optim::Optimizer& optimizer);
  // Calls train() with the round's group set. On return and on an exception, releases everything
  // that holds the group; a SIGTERM that nobody has taken ends the process then.
  void in_round(std::shared_ptr<ProcessGroup> group, const std::function<void()>& train);
  // Within in_round(). Both are collective. begin_round() brings the training where it goes on: to
  // the last commit, to the newest checkpoint or to the beginning.
  void begin_round();
  void train_to_the_end();

  // Nothing has been trained in this job, or only the disk has what was.
  virtual void start_over() = 0;
  // Makes the round's replica and checkpoints. The sampler is there.
  virtual void make_round() = 0;
  // `goes_on`: the last commit has been restored. Otherwise loads the newest checkpoint.
  virtual void resume(bool goes_on) = 0;
  // Releases everything that holds the group.
  virtual void leave_round();

  // Sets the learning rates. The sampler's position is that after the step.
  virtual void begin_step() = 0;
  // The mean loss of some samples; with `counts` false, the loss is not this rank's, and is
  // multiplied by 0.
  virtual at::Tensor loss_of(std::span<const std::int64_t> samples, bool counts) = 0;
  // Adds up the gradients of this rank's samples, so that the average over the ranks is the
  // gradient of the mean loss of the step's `joint` samples. Returns the mean of the samples'
  // losses.
  virtual double backwards(std::span<const std::int64_t> samples, std::int64_t joint);
  // Reports and evaluates. Returns whether the step was the epoch's last one.
  virtual bool after_step(const StepReport& report) = 0;
  // Goes to the next epoch. Called after the checkpoint of the epoch's last step, and once more in
  // a training that resumes from that; never, if after_step() does it.
  virtual void end_epoch() = 0;
  virtual bool is_over() const;

  virtual void save_checkpoint() = 0;
  // After the checkpoint that a SIGTERM has asked for. Only the ranks that got it must stop.
  virtual void stop_if_told() = 0;

  const Plan& plan() const { return plan_; }
  ControlChannel& channel() const { return channel_; }
  ElasticState* elastic() const { return elastic_; }  // Null if a failure ends this process.
  // Number of logical ranks, or of workers.
  int ranks() const;

  // Of the round.
  std::shared_ptr<ProcessGroup> group_;
  std::optional<DistributedSampler> sampler_;
  std::unique_ptr<Replica> replica_;
  // Null without checkpoints.
  std::unique_ptr<CheckpointRequests> requests_;
  std::optional<CheckpointRequests::Listening> listening_;
  double last_loss_ = 0;  // Of the last backward.

 private:
  void take_step();
  double backward(std::span<const std::int64_t> samples, std::int64_t joint);
  void save_if_due(bool epoch_ends);
  void commit_if_due(bool epoch_ends);
  void commit();

  Plan plan_;
  LoopState& at_;
  ControlChannel& channel_;
  ElasticState* elastic_ = nullptr;
};

}  // namespace ddp::loop
