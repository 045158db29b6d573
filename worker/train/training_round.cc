#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/train/agreement.h"
#include "worker/train/initial_weights.h"
#include "worker/train/optimizer.h"
#include "worker/train/training.h"
#include "worker/train/training_failure.h"

// Training's rounds: makes what belongs to one, goes on from a checkpoint, from the last commit or
// from nothing, and takes it down.
namespace ddp::train {
namespace {

ReplicaOptions replica_options(const Options& options,
                               const std::vector<DeviceGroup>& device_groups) {
  ReplicaOptions result;
  result.grad_sync = options.grad_sync;
  result.comm_hook = options.comm_hook;
  result.bucket_cap_mb = options.bucket_cap_mb;
  result.ddp.device_groups = device_groups;
  result.ddp.gradient_as_bucket_view = options.gradient_as_bucket_view;
  result.ddp.forward_sync_buffers = options.broadcast_buffers;
  result.ddp.find_unused_parameters = options.find_unused_parameters;
  result.ddp.static_graph = options.static_graph;
  return result;
}

}  // namespace

void Training::keep_in(ElasticState& elastic) {
  TrainingLoop::keep_in(elastic, *model_, *optimizer_);
  elastic.set_commit_pace({.every = parts_.options.commit_every});
  elastic.add_value("epoch", state_.epoch);
  elastic.add_value("position", state_.position);
  elastic.add_value("step", state_.step);
  elastic.add_sum("loss_sum", state_.loss_sum);
  elastic.add_sum("loss_count", state_.loss_count);
  elastic.add_value(
      "averager",
      [this] {
        const bool any = replica_ && replica_->averager();
        return any ? replica_->averager()->state() : averager_state_;
      },
      [this](const nlohmann::json& saved) { averager_state_ = saved; });
}

void Training::start_over() {
  state_ = {};
  averager_state_ = {};
  logical_ranks_.reset();
}

void Training::make_round() {
  const Options& options = parts_.options;
  if (sampler_->steps_per_epoch() == 0) {
    throw TrainingFailure(
        kExitInvalidValue,
        fmt::format("--batch-size {}: {} {} take {} samples a step, expected at most the {} of the "
                    "training set",
                    options.batch_size, ranks(),
                    options.logical_world_size > 0 ? "logical ranks" : "workers",
                    plan().sampling.batch_size * ranks(), parts_.data.train->size()));
  }
  make_replica();
  if (plan().saves) make_checkpoint();
  if (elastic() == nullptr || (!replica_->averager() && replica_->keeps_ranks_equal())) return;
  own_state_ = std::make_shared<LocalReplica>(*model_, *optimizer_);
  elastic()->add_comm_hook("local_replica", own_state_);
}

void Training::resume(bool goes_on) {
  const Options& options = parts_.options;
  if (goes_on && own_state_) own_state_->apply();
  if (goes_on && replica_->averager()) replica_->averager()->load_state(averager_state_);
  const bool loaded = checkpoint_ && checkpoint_->resume(!goes_on);
  if (goes_on) {
    resumed_from_ = state_.step;
    say(fmt::format("round {}: {} workers go on after step {}", group_->round(), group_->size(),
                    state_.step));
    return;
  }
  if (!loaded && !options.init_from.empty()) {
    load_initial_weights(options, group_, *model_, [this](const std::string& text) { say(text); });
  }
  if (!checkpoint_) return;
  resumed_from_ = state_.step;
  set_hyper_parameters(*optimizer_, options);
}

void Training::leave_round() {
  rate_log_.reset();
  tensorboard_.reset();
  own_state_.reset();
  checkpoint_.reset();
  logical_ = nullptr;
  TrainingLoop::leave_round();
  test_accuracy_.reset();
  train_loss_ = 0;
  round_ = {};
}

void Training::make_checkpoint() {
  checkpoint_ = std::make_unique<TrainingCheckpoint>(
      TrainingCheckpoint::Parts{.options = parts_.options,
                                .train_samples = parts_.data.train->size(),
                                .threads = round_.threads,
                                .group = group_,
                                .model = *model_,
                                .optimizer = *optimizer_,
                                .replica = *replica_,
                                .state = state_,
                                .writer = checkpoint_writer_,
                                .say = [this](const std::string& text) { say(text); }});
}

void Training::make_replica() {
  const Options& options = parts_.options;
  try {
    if (options.logical_world_size == 0) {
      replica_ = Replica::make(replica_options(options, round_.device_groups), model_, *optimizer_,
                               group_);
      return;
    }
    if (!logical_ranks_) logical_ranks_.emplace(options.logical_world_size, options.seed);
    auto logical = std::make_unique<LogicalReplica>(options.comm_hook, model_, *optimizer_, group_,
                                                    *logical_ranks_);
    logical_ = logical.get();
    replica_ = std::move(logical);
  } catch (const std::invalid_argument& different) {
    throw TrainingFailure(kExitInvalidValue, different.what());
  }
}

}  // namespace ddp::train
