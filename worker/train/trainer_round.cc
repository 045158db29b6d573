#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "common/base/exit_codes.h"
#include "worker/train/agreement.h"
#include "worker/train/failure.h"
#include "worker/train/initial_weights.h"
#include "worker/train/optimizer.h"
#include "worker/train/trainer.h"

// Trainer's rounds: sets up a round from a checkpoint, from the last commit or from nothing, and
// takes it down.
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

void Trainer::keep_in(ElasticState& elastic) {
  elastic_ = &elastic;
  elastic.set_commit_pace({.every = parts_.options.commit_every});
  elastic.add_module("model", *model_);
  elastic.add_optimizer("optimizer", *optimizer_, *model_);
  if (parts_.options.logical_world_size == 0) elastic.add_rng();
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

void Trainer::begin_round(Round round) {
  parts_.group = std::move(round.group);
  parts_.device_groups = std::move(round.device_groups);
  parts_.printer = round.printer;
  parts_.threads = round.threads;
  const Options& options = parts_.options;
  const ProcessGroup& group = *parts_.group;
  check_same_flags(options, *parts_.group);
  if (ranks() < group.size()) {
    throw Failure(kExitInvalidValue,
                  fmt::format("--logical-world-size {}: there are {} workers, expected at most one "
                              "per logical rank",
                              ranks(), group.size()));
  }
  make_sampler();
  const bool goes_on = elastic_ != nullptr && elastic_->resumed();
  if (!goes_on) start_over();
  make_replica();
  if (!options.trace.empty()) {
    if (!trace_) trace_ = std::make_shared<Trace>(group.rank());
    replica_->set_trace(trace_);
  }
  if (!options.checkpoint_dir.empty()) make_checkpoint();
  if (elastic_ != nullptr) take_up_commit();
  const bool resumed = checkpoint_ && checkpoint_->resume(!goes_on);
  if (!goes_on && !resumed && !options.init_from.empty()) {
    load_initial_weights(options, parts_.group, *model_,
                         [this](const std::string& text) { say(text); });
  }
  if (goes_on) {
    resumed_from_ = state_.step;
    say(fmt::format("round {}: {} workers go on after step {}", group.round(), group.size(),
                    state_.step));
  } else {
    resume();
  }
}

// Releases everything that holds the group.
void Trainer::leave_round() {
  rate_log_.reset();
  own_state_.reset();
  checkpoint_.reset();
  logical_ = nullptr;
  replica_.reset();
  sampler_.reset();
  for (at::Tensor& parameter : model_->parameters()) parameter.mutable_grad() = at::Tensor();
  test_accuracy_.reset();
  train_loss_ = 0;
  parts_.device_groups.clear();
  parts_.group.reset();
}

void Trainer::make_sampler() {
  const Options& options = parts_.options;
  // For the sampler, all backwards of one step are one batch, because checkpoints lie between
  // steps.
  const std::int64_t batch = options.batch_size * options.accumulate_steps;
  sampler_.emplace(DistributedSampler::Config{.dataset_size = parts_.data.train->size(),
                                              .batch_size = batch,
                                              .rank = parts_.group->rank(),
                                              .world_size = ranks(),
                                              .seed = options.seed,
                                              .drop_last = options.drop_last,
                                              .even = false});
  if (sampler_->steps_per_epoch() == 0) {
    throw Failure(
        kExitInvalidValue,
        fmt::format("--batch-size {}: {} {} take {} samples a step, expected at most the {} of the "
                    "training set",
                    options.batch_size, ranks(),
                    options.logical_world_size > 0 ? "logical ranks" : "workers", batch * ranks(),
                    parts_.data.train->size()));
  }
}

void Trainer::make_checkpoint() {
  checkpoint_ = std::make_unique<TrainingCheckpoint>(
      TrainingCheckpoint::Parts{.options = parts_.options,
                                .train_samples = parts_.data.train->size(),
                                .threads = parts_.threads,
                                .group = parts_.group,
                                .model = *model_,
                                .optimizer = *optimizer_,
                                .replica = *replica_,
                                .logical = logical_,
                                .state = state_,
                                .writer = checkpoint_writer_,
                                .say = [this](const std::string& text) { say(text); }});
}

// Begins from the seed: nothing has been trained in this job, or only the disk has what was.
void Trainer::start_over() {
  at::manual_seed(parts_.options.seed + static_cast<std::uint64_t>(parts_.group->rank()));
  state_ = {};
  averager_state_ = {};
  logical_ranks_.reset();
}

// Registers the round's own state with elastic_ and restores the last commit. This comes after
// make_replica(), which broadcasts rank 0's model.
void Trainer::take_up_commit() {
  if (logical_ranks_) {
    // A pointer without ownership: logical_ranks_ outlives the round.
    elastic_->add_comm_hook("logical_ranks",
                            std::shared_ptr<CommHook>(std::shared_ptr<void>(), &*logical_ranks_));
  }
  if (replica_->comm_hook()) elastic_->add_comm_hook("comm_hook", replica_->comm_hook());
  if (replica_->averager() || !replica_->keeps_ranks_equal()) {
    own_state_ = std::make_shared<LocalReplica>(*model_, *optimizer_);
    elastic_->add_comm_hook("local_replica", own_state_);
  }
  if (!elastic_->resumed()) return;
  elastic_->restore();
  if (own_state_) own_state_->apply();
  if (replica_->averager()) replica_->averager()->load_state(averager_state_);
}

void Trainer::make_replica() {
  const Options& options = parts_.options;
  try {
    if (options.logical_world_size == 0) {
      replica_ = Replica::make(replica_options(options, parts_.device_groups), model_, *optimizer_,
                               parts_.group);
      return;
    }
    if (!logical_ranks_) logical_ranks_.emplace(options.logical_world_size, options.seed);
    auto logical = std::make_unique<LogicalReplica>(options.comm_hook, model_, *optimizer_,
                                                    parts_.group, *logical_ranks_);
    logical_ = logical.get();
    replica_ = std::move(logical);
  } catch (const std::invalid_argument& different) {
    throw Failure(kExitInvalidValue, different.what());
  }
}

void Trainer::resume() {
  if (checkpoint_) {
    resumed_from_ = state_.step;
    set_hyper_parameters(*optimizer_, parts_.options);
  }
  if (elastic_ == nullptr) return;
  if (logical_ != nullptr) logical_->gather();
  elastic_->commit(state_.step);
}

}  // namespace ddp::train
