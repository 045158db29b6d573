#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include "worker/ddp/loop/training_loop.h"
#include "worker/ddp/trainer/fit_state.h"
#include "worker/ddp/trainer/settings.h"
#include "worker/ddp/trainer/trainer.h"
#include "worker/ddp/trainer/training_step.h"

namespace ddp::trainer {

// One Trainer::fit(), in one round of the job or in several. On the training thread.
//
// A checkpoint of step k holds everything as of the moment when all that belongs to step k is done:
// validation, callbacks, the end of the epoch. So after_step() ends the epoch.
class FitLoop final : private loop::TrainingLoop {
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

  void start_over() override;
  void make_round() override;
  void resume(bool goes_on) override;
  void leave_round() override;
  void begin_step() override;
  at::Tensor loss_of(std::span<const std::int64_t> samples, bool counts) override;
  bool after_step(const loop::StepReport& report) override;
  void end_epoch() override;
  bool is_over() const override;
  void save_checkpoint() override;
  void stop_if_told() override;

  template <typename State>
  void register_values(State& state);
  void load_callbacks(const nlohmann::json& saved);
  void find_place_in_epoch();
  void count_steps();
  void set_rates();
  void log_step();
  void close_epoch();
  bool validates() const;
  bool validation_is_due(std::int64_t batches_before) const;
  void validate();
  void call(Hook hook);
  void report_checkpoints();
  std::int64_t batches_per_epoch() const;
  const TrainerOptions& options() const { return parts_.trainer.options(); }
  ProcessGroup& group() const { return *group_; }

  Parts parts_;
  FitState& state_;
  ConfiguredOptimizer configured_;
  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_rates_;  // Of the optimizer's groups.
  TrainingStep step_;
  std::int64_t batch_index_ = 0;  // Of the next backward, in the epoch.

  // Of the round.
  std::unique_ptr<Checkpointer> checkpointer_;  // Null without a default_root_dir.
};

}  // namespace ddp::trainer
