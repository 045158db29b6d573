#include "worker/ddp/loop/training_loop.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <ATen/Context.h>

#include "common/base/clock.h"
#include "worker/runtime/trace.h"
#include "worker/runtime/trace_scope.h"

namespace ddp::loop {

void add_training(Checkpointer& checkpointer, torch::nn::Module& module,
                  torch::optim::Optimizer& optimizer, Replica& replica) {
  checkpointer.add_module("model", module);
  if (ZeroRedundancyOptimizer* zero = replica.zero()) {
    checkpointer.add_optimizer("optimizer", *zero, module);
  } else {
    checkpointer.add_optimizer("optimizer", optimizer, module);
  }
  if (CommHook* logical_ranks = replica.logical_ranks()) {
    checkpointer.add_comm_hook("logical_ranks", *logical_ranks);
  } else {
    checkpointer.add_rng();
  }
  if (replica.comm_hook()) checkpointer.add_comm_hook("comm_hook", *replica.comm_hook());
}

TrainingLoop::TrainingLoop(const Plan& plan, LoopState& state, ControlChannel& channel)
    : plan_(plan), at_(state), channel_(channel) {
  if (plan.saves) requests_ = std::make_unique<CheckpointRequests>(channel);
}

void TrainingLoop::keep_in(ElasticState& elastic, torch::nn::Module& module,
                           torch::optim::Optimizer& optimizer) {
  elastic_ = &elastic;
  elastic.add_module("model", module);
  elastic.add_optimizer("optimizer", optimizer, module);
  if (plan_.logical_ranks == 0) elastic.add_rng();
}

void TrainingLoop::in_round(std::shared_ptr<ProcessGroup> group,
                            const std::function<void()>& train) {
  struct Leave {
    TrainingLoop& loop;
    ~Leave() {
      loop.listening_.reset();
      loop.leave_round();
    }
  };
  const Leave leave{*this};
  group_ = std::move(group);
  train();
}

void TrainingLoop::begin_round() {
  const bool goes_on = elastic_ != nullptr && elastic_->resumed();
  // Also where the training goes on: ranks that a grown world has gained have no state to restore.
  at::manual_seed(plan_.seed + static_cast<std::uint64_t>(group_->rank()));
  if (!goes_on) start_over();
  plan_.sampling.rank = group_->rank();
  plan_.sampling.world_size = ranks();
  sampler_.emplace(plan_.sampling);
  make_round();
  if (elastic_ != nullptr) {
    if (CommHook* logical_ranks = replica_->logical_ranks()) {
      // A pointer without ownership: they outlive the round.
      elastic_->add_comm_hook("logical_ranks",
                              std::shared_ptr<CommHook>(std::shared_ptr<void>(), logical_ranks));
    }
    if (replica_->comm_hook()) elastic_->add_comm_hook("comm_hook", replica_->comm_hook());
  }
  if (goes_on) elastic_->restore();  // Making the replica has set parameters and buffers.
  resume(goes_on);
  if (elastic_ != nullptr && !goes_on) commit();
}

void TrainingLoop::leave_round() {
  replica_.reset();
  sampler_.reset();
  group_.reset();
}

void TrainingLoop::train_to_the_end() {
  if (requests_) listening_.emplace(*requests_);
  runtime::trace_training_begins(at_.step, Clock::now());
  while (at_.epoch < plan_.max_epochs) {
    sampler_->set_epoch(at_.epoch, at_.position);
    if (sampler_->steps_left() == 0) {
      end_epoch();
    } else if (is_over()) {
      return;
    } else {
      take_step();
    }
  }
}

void TrainingLoop::take_step() {
  const std::span<const std::int64_t> samples = sampler_->next_batch();
  begin_step();
  const TimePoint began = Clock::now();
  StepReport report;
  report.samples = sampler_->position() - at_.position;
  replica_->zero_grad();
  report.loss = backwards(samples, report.samples);
  if (plan_.clip_grad_norm > 0) replica_->clip_grad_norm(plan_.clip_grad_norm);
  const TimePoint backward_end = Clock::now();
  replica_->step();
  if (runtime::is_traced()) runtime::trace_span("compute", "optimizer", backward_end, Clock::now());
  ++at_.step;
  at_.position = sampler_->position();
  report.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  const bool epoch_ends = after_step(report);
  save_if_due(epoch_ends);
  commit_if_due(epoch_ends);
}

double TrainingLoop::backwards(std::span<const std::int64_t> samples, std::int64_t joint) {
  const auto batch = static_cast<std::size_t>(plan_.batch_size);
  const auto count = static_cast<double>(std::max<std::size_t>(samples.size(), 1));
  double sum = 0;
  for (; samples.size() > batch; samples = samples.subspan(batch)) {
    const std::unique_ptr<NoSync> no_sync = replica_->no_sync();
    sum += backward(samples.first(batch), joint);
  }
  sum += backward(samples, joint);
  return sum / count;
}

// Returns the sum of the samples' losses. A rank without samples takes part in the others'
// collectives with one sample of weight 0.
double TrainingLoop::backward(std::span<const std::int64_t> samples, std::int64_t joint) {
  constexpr std::array<std::int64_t, 1> kAnySample = {0};
  const bool counts = !samples.empty();
  const at::Tensor loss = loss_of(counts ? samples : kAnySample, counts);
  const auto as_one_of_all = static_cast<std::int64_t>(samples.size()) * ranks();
  if (!counts) {
    loss.mul(0).backward();
  } else if (as_one_of_all == joint) {
    loss.backward();
  } else {
    loss.div(static_cast<double>(joint) / static_cast<double>(as_one_of_all)).backward();
  }
  last_loss_ = loss.item<double>();
  return counts ? last_loss_ * static_cast<double>(samples.size()) : 0;
}

void TrainingLoop::save_if_due(bool epoch_ends) {
  if (!requests_) return;
  using Asked = CheckpointRequests::Asked;
  const Asked asked = requests_->after_step(*group_, at_.step);
  const std::int64_t every = plan_.checkpoint_every;
  const bool is_its_turn = every > 0 && at_.step % every == 0;
  if (!epoch_ends && !is_its_turn && !is_over() && asked == Asked::kNothing) return;
  const TraceScope scope("checkpoint", "checkpoint", at_.step);
  replica_->gather();
  save_checkpoint();
  if (asked == Asked::kCheckpointAndStop) stop_if_told();
}

void TrainingLoop::commit_if_due(bool epoch_ends) {
  if (elastic_ == nullptr) return;
  if (elastic_->is_commit_due() || epoch_ends || is_over()) commit();
}

void TrainingLoop::commit() {
  const TraceScope scope("checkpoint", "commit", at_.step);
  replica_->gather();
  elastic_->commit(at_.step);
}

bool TrainingLoop::is_over() const {
  return at_.step >= plan_.max_steps || at_.epoch >= plan_.max_epochs;
}

int TrainingLoop::ranks() const {
  return plan_.logical_ranks > 0 ? plan_.logical_ranks : group_->size();
}

}  // namespace ddp::loop
