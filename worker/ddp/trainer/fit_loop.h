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
#include "worker/ddp/trainer/fit_state.h"
#include "worker/ddp/trainer/settings.h"
#include "worker/ddp/trainer/trainer.h"
#include "worker/ddp/trainer/training_step.h"
#include "worker/runtime/checkpoint_requests.h"

namespace ddp::trainer {

// One Trainer::fit(). Collective, on the training thread.
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
    Logger* logger;  // Null on all ranks but 0, and without one.
    std::shared_ptr<TrainerModule> module;
    const DataLoader& train;
    const DataLoader* validation;  // May be null.
    std::vector<c10::Device> devices;
  };
  explicit FitLoop(Parts parts);

  void run();

 private:
  using Hook = void (Callback::*)(Trainer&, TrainerModule&);

  void make_checkpointer();
  void register_state();
  void load_callbacks(const nlohmann::json& saved);
  void resume();
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
  void stop_if_told();
  void call(Hook hook);
  std::int64_t batches_per_epoch() const;
  const TrainerOptions& options() const { return parts_.trainer.options(); }
  ProcessGroup& group() const { return *group_; }

  Parts parts_;
  FitState& state_;
  std::shared_ptr<ProcessGroup> group_;
  ConfiguredOptimizer configured_;
  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_rates_;  // Of the optimizer's groups.
  std::int64_t max_steps_ = 0;
  std::int64_t max_epochs_ = 0;
  std::unique_ptr<Replica> replica_;
  TrainingStep step_;
  DistributedSampler sampler_;
  // Null without a default_root_dir.
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<CheckpointRequests> requests_;
  std::optional<CheckpointRequests::Listening> listening_;
};

}  // namespace ddp::trainer
