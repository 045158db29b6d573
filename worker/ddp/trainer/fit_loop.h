#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include "worker/data/sampler.h"
#include "worker/ddp/replica/replica.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/elastic_state.h"
#include "worker/ddp/trainer/fit_state.h"
#include "worker/ddp/trainer/settings.h"
#include "worker/ddp/trainer/trainer.h"
#include "worker/ddp/trainer/training_step.h"
#include "worker/runtime/checkpoint_requests.h"

namespace ddp::trainer {

// One Trainer::fit(), in one round of the job or in several. On the training thread.
//
// Exact resuming: what an update computes depends on the parameters, buffers, the optimizer's
// state, the generator and the FitState after the update before, and on the options and the data. A
// checkpoint of step k has all of these as of the moment when everything that belongs to step k is
// done: validation, callbacks, the end of the epoch.
class FitLoop {
 public:
  struct Parts {
    Trainer& trainer;
    FitState& state;
    const Settings& settings;
    std::vector<std::shared_ptr<Callback>> callbacks;
    std::shared_ptr<TrainerModule> module;
    const DataLoader& train;
    const DataLoader* validation;  // May be null.
    std::vector<c10::Device> devices;
  };
  explicit FitLoop(Parts parts);

  // For run_elastic(): registers what run() goes on from in the round after a failure. Call it once
  // before run(); `elastic` must outlive the loop's runs. Not with zero1, whose optimizer state is
  // divided among the ranks.
  void keep_in(ElasticState& elastic);

  // Trains in one round. Collective. Begins with the newest checkpoint, or with the last commit if
  // `elastic` has resumed from one. Holds nothing of the group afterwards, also after an exception.
  // logger: null on all ranks but 0, and without one.
  void run(std::shared_ptr<ProcessGroup> group, Logger* logger);

 private:
  using Hook = void (Callback::*)(Trainer&, TrainerModule&);

  void begin_round();
  void leave_round();
  void make_checkpointer();
  template <typename State>
  void register_values(State& state);
  void load_callbacks(const nlohmann::json& saved);
  void load_checkpoint();
  void count_steps();
  bool is_over() const;
  void update();
  void backwards(std::span<const std::int64_t> samples, std::int64_t joint);
  void backward(std::span<const std::int64_t> samples, std::int64_t joint,
                std::int64_t batch_index);
  void set_rates();
  void log_step();
  bool epoch_ends() const;
  bool validation_is_due(std::int64_t batches_before) const;
  void validate();
  void end_epoch();
  void save_if_due(bool epoch_ended);
  void commit_if_due();
  void stop_if_told();
  void call(Hook hook);
  std::int64_t batches_per_epoch() const;
  const TrainerOptions& options() const { return parts_.trainer.options(); }
  ProcessGroup& group() const { return *group_; }

  Parts parts_;
  FitState& state_;
  ConfiguredOptimizer configured_;
  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_rates_;  // Of the optimizer's groups.
  std::int64_t max_steps_ = 0;
  std::int64_t max_epochs_ = 0;
  TrainingStep step_;
  std::unique_ptr<CheckpointRequests> requests_;  // Null without a default_root_dir.
  ElasticState* elastic_ = nullptr;               // Null if a failure ends this process.

  // Of the round.
  std::shared_ptr<ProcessGroup> group_;
  Logger* logger_ = nullptr;
  std::unique_ptr<Replica> replica_;
  std::optional<DistributedSampler> sampler_;
  std::unique_ptr<Checkpointer> checkpointer_;  // Null without a default_root_dir.
  std::optional<CheckpointRequests::Listening> listening_;
};

}  // namespace ddp::trainer
