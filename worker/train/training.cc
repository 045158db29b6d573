#include "worker/train/training.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "worker/runtime/trace_scope.h"
#include "worker/train/agreement.h"
#include "worker/train/evaluate.h"
#include "worker/train/exactness.h"
#include "worker/train/learning_rate.h"
#include "worker/train/models/gpt.h"
#include "worker/train/models/names.h"
#include "worker/train/optimizer.h"
#include "worker/train/training_failure.h"

namespace ddp::train {

namespace {

loop::Plan plan_of(const Options& options, std::int64_t train_samples) {
  loop::Plan plan;
  plan.sampling.dataset_size = train_samples;
  plan.sampling.batch_size = options.batch_size * options.accumulate_steps;
  plan.sampling.seed = options.seed;
  plan.sampling.drop_last = options.drop_last;
  plan.logical_ranks = options.logical_world_size;
  plan.seed = options.seed;
  plan.batch_size = options.batch_size;
  plan.clip_grad_norm = options.clip_grad_norm;
  plan.max_epochs = options.epochs;
  plan.max_steps =
      options.max_steps > 0 ? options.max_steps : std::numeric_limits<std::int64_t>::max();
  plan.saves = !options.checkpoint_dir.empty();
  plan.checkpoint_every = options.checkpoint_every;
  return plan;
}

}  // namespace

Training::Training(Parts parts)
    : TrainingLoop(plan_of(parts.options, parts.data.train ? parts.data.train->size() : 0), state_,
                   parts.channel),
      parts_(std::move(parts)) {
  const Options& options = parts_.options;
  at::manual_seed(options.seed);
  model_ = make_model({.name = options.model,
                       .dropout = options.dropout,
                       .num_classes = options.num_classes,
                       .devices = parts_.devices,
                       .micro_batches = options.micro_batches,
                       .gpt = options.gpt});
  optimizer_ = make_optimizer(options, model_->parameters());
  if (plan().saves) checkpoint_writer_ = std::make_shared<CheckpointWriter>(&channel());
}

Summary Training::run(Round round) {
  round_ = std::move(round);
  Summary summary;
  in_round(round_.group, [&] {
    check_same_flags(parts_.options, *group_);
    if (ranks() < group_->size()) {
      throw TrainingFailure(
          kExitInvalidValue,
          fmt::format("--logical-world-size {}: there are {} workers, expected at most "
                      "one per logical rank",
                      ranks(), group_->size()));
    }
    begin_round();
    open_logs();
    model_->train();
    train_to_the_end();
    summary = finish();
  });
  return summary;
}

Summary Training::finish() {
  const bool mid_epoch = state_.position > 0;
  if (mid_epoch) train_loss_ = mean_loss();
  const bool changed = replica_->bring_together();
  // Also if there was nothing left to train in this process.
  if (mid_epoch || changed || !test_accuracy_) evaluate();
  log_accuracy();

  const Options& options = parts_.options;
  Summary summary;
  summary.model = options.model;
  summary.data = options.data;
  summary.world_size = group_->size();
  summary.epochs = state_.epoch;
  summary.steps = state_.step;
  summary.train_loss = train_loss_;
  summary.test_accuracy = test_accuracy_;
  summary.weights_sha256 = weights_sha256(*model_);
  summary.samples_per_second = throughput_.mean();
  summary.resumed_from_step = resumed_from_;
  summary.grad_sync = to_string(options.grad_sync);
  summary.seed = options.seed;
  summary.batch_size = options.batch_size;
  summary.threads = round_.threads;
  if (replica_->keeps_ranks_equal()) check_same_weights(summary.weights_sha256);
  if (checkpoint_) checkpoint_->wait();
  say_sample();
  return summary;
}

void Training::say_sample() {
  const Options& options = parts_.options;
  if (!is_for_text(options.model) || options.sample_bytes == 0 || round_.printer == nullptr) return;
  std::string text =
      sample_text(*model_, options.gpt.context, "\n", options.sample_bytes, options.seed);
  // Only printable ASCII and newlines: a terminal could take other bytes for commands.
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char byte) { return byte != '\n' && (byte < 0x20 || byte > 0x7e); }, '.');
  say(fmt::format("sample: {}", text));
}

void Training::begin_step() {
  const Options& options = parts_.options;
  const double done =
      static_cast<double>(sampler_->position()) / static_cast<double>(parts_.data.train->size());
  learning_rate_ = learning_rate(options, options.lr * ranks(), state_.epoch, done);
  set_learning_rate(*optimizer_, learning_rate_);
}

double Training::backwards(std::span<const std::int64_t> samples, std::int64_t joint) {
  if (logical_ != nullptr) return logical_ranks_step(joint);
  const double loss = TrainingLoop::backwards(samples, joint);
  state_.loss_sum += loss * static_cast<double>(samples.size());
  state_.loss_count += static_cast<std::int64_t>(samples.size());
  return loss;
}

// Runs the backwards of all logical ranks of this worker. Returns the mean loss of their samples.
double Training::logical_ranks_step(std::int64_t joint) {
  double sum = 0;
  std::size_t samples = 0;
  for (Rank logical = logical_->own().begin; logical < logical_->own().end; ++logical) {
    const std::vector<std::int64_t> indices = sampler_->batch_of(logical);
    logical_->begin(logical);
    const double loss =
        TrainingLoop::backwards(indices, joint) * static_cast<double>(indices.size());
    logical_->end(logical);
    logical_ranks_->add_loss(logical, loss, static_cast<std::int64_t>(indices.size()));
    sum += loss;
    samples += indices.size();
  }
  return sum / static_cast<double>(std::max<std::size_t>(samples, 1));
}

at::Tensor Training::loss_of(std::span<const std::int64_t> samples, bool /*counts*/) {
  {
    const TraceScope scope("input", "batch");
    parts_.data.train->fill(samples, batch_);
  }
  seed_devices(parts_.devices);  // For dropout.
  const at::Tensor output =
      replica_->forward([&] { return model_->forward(batch_.input.to(parts_.devices.front())); });
  return model_->loss(output, batch_.target.to(output.device()));
}

bool Training::after_step(const loop::StepReport& step) {
  report(step);
  evaluate_if_due();
  return sampler_->steps_left() == 0;
}

void Training::evaluate_if_due() {
  const std::int64_t every = parts_.options.eval_every;
  if (every == 0 || state_.step % every != 0) return;
  evaluate();
  if (!test_accuracy_) return;
  say(fmt::format("step {}: test accuracy {:.2f} %", state_.step, 100 * *test_accuracy_));
  if (rate_log_) note("--rates", rate_log_->accuracy(state_.epoch, state_.step, *test_accuracy_));
  log_accuracy();
}

void Training::save_checkpoint() { checkpoint_->save(); }

// Only ranks that got the signal stop. The others continue, if the job allows fewer workers.
void Training::stop_if_told() {
  const bool complete = checkpoint_->wait();
  if (!requests_->take_stop()) return;
  throw TrainingFailure(
      kExitSignalBase + SIGTERM,
      fmt::format("stopped by SIGTERM after step {}, {}", state_.step,
                  complete ? "whose checkpoint is complete" : "without a checkpoint"));
}

void Training::end_epoch() {
  train_loss_ = mean_loss();
  evaluate();
  std::string text = fmt::format("epoch {}/{}: train loss {:.4f}", state_.epoch + 1,
                                 parts_.options.epochs, train_loss_);
  if (test_accuracy_) text += fmt::format(", test accuracy {:.2f} %", 100 * *test_accuracy_);
  say(text);
  log_accuracy();
  ++state_.epoch;
  state_.position = 0;
  state_.loss_sum = 0;
  state_.loss_count = 0;
  if (logical_ranks_) logical_ranks_->clear_losses();
}

void Training::evaluate() {
  replica_->broadcast_buffers();
  if (!model_->classifies() || parts_.data.test->size() == 0) return;
  // The activations of so many digits fit into a core's cache.
  const bool is_small = is_for_digits(parts_.options.model);
  const std::int64_t batch = is_small ? 250 : parts_.options.batch_size;
  const Rank rank = group_->rank();
  const RankRange shares = logical_ != nullptr ? logical_->own() : RankRange{rank, rank + 1};
  test_accuracy_ = evaluate_accuracy(*model_, *parts_.data.test, batch, {shares, ranks()}, *group_);
}

double Training::mean_loss() {
  if (logical_ != nullptr) {
    logical_->gather();
    return logical_ranks_->mean_loss();
  }
  std::array<double, 2> sums = {state_.loss_sum, static_cast<double>(state_.loss_count)};
  group_
      ->all_reduce({sums.data(), sums.size(), DType::kF64}, ReduceOp::kSum,
                   {.timeout = {}, .tag = "mean loss"})
      ->wait();
  return sums[0] / sums[1];
}

void Training::report(const loop::StepReport& step) {
  throughput_.add(step.samples, step.seconds);
  log(step);
  channel().progress(state_.step, step.loss, throughput_.recent(), state_.step + steps_to_go());
  if (round_.printer == nullptr) return;
  Progress progress;
  progress.epoch = state_.epoch;
  progress.epochs = parts_.options.epochs;
  progress.step = state_.step;
  progress.total_steps = state_.step + steps_to_go();
  progress.loss = step.loss;
  progress.samples_per_second = throughput_.recent();
  progress.eta_seconds = throughput_.step_seconds() * static_cast<double>(steps_to_go());
  round_.printer->step(progress, Clock::now());
}

void Training::open_logs() {
  const Options& options = parts_.options;
  if (group_->rank() != 0) return;
  if (!options.rates.empty()) {
    const bool goes_on = state_.step > 0 || (elastic() != nullptr && elastic()->resumed());
    auto log = RateLog::open(options.rates, goes_on, options.log_every);
    if (!log) throw TrainingFailure(kExitInvalidValue, "--rates " + log.error().message);
    rate_log_ = *std::move(log);
  }
  if (!options.tensorboard.empty()) {
    auto log = TensorBoardLog::open(options.tensorboard, state_.step, options.log_every);
    if (!log) throw TrainingFailure(kExitInvalidValue, "--tensorboard " + log.error().message);
    tensorboard_ = *std::move(log);
    if (checkpoint_) log_checkpoints();
  }
}

void Training::log_checkpoints() {
  checkpoint_->tell_times(
      {.held =
           [this](std::int64_t step, double seconds) {
             note("--tensorboard", tensorboard_->checkpoint_held(step, seconds));
           },
       .written =
           [this](std::int64_t step, double seconds) {
             note("--tensorboard", tensorboard_->checkpoint_written(step, seconds));
           }});
  if (state_.step > 0) checkpoint_->tell_newest(state_.step);
}

void Training::log(const loop::StepReport& step) {
  const StepRecord record = {.epoch = state_.epoch,
                             .step = state_.step,
                             .loss = step.loss,
                             .learning_rate = learning_rate_,
                             .samples = step.samples,
                             .seconds = step.seconds};
  if (rate_log_) note("--rates", rate_log_->step(record));
  if (tensorboard_)
    note("--tensorboard", tensorboard_->step(record, throughput_.recent(), round_.restarts));
}

void Training::log_accuracy() {
  if (test_accuracy_ && tensorboard_)
    note("--tensorboard", tensorboard_->accuracy(state_.step, *test_accuracy_));
}

void Training::note(const char* flag, const Result<void>& written) {
  if (!written) say(fmt::format("note: {} {}", flag, written.error().message));
}

// After data-parallel training all ranks must have the same bytes. If not, the result is wrong.
void Training::check_same_weights(const std::string& sha256) {
  const auto size = static_cast<std::size_t>(group_->size());
  std::string own = sha256;
  std::string all(own.size() * size, '\0');
  group_
      ->all_gather({own.data(), own.size(), DType::kU8}, {all.data(), all.size(), DType::kU8},
                   {.timeout = {}, .tag = "weights_sha256"})
      ->wait();
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::string other = all.substr(rank * own.size(), own.size());
    if (other == all.substr(0, own.size())) continue;
    throw TrainingFailure(
        kExitInternal,
        fmt::format("the ranks ended with different weights: {} on rank 0, {} on rank {}",
                    all.substr(0, own.size()), other, rank));
  }
}

std::int64_t Training::steps_to_go() const {
  const std::int64_t epochs_after = parts_.options.epochs - state_.epoch - 1;
  const std::int64_t steps = sampler_->steps_left() + epochs_after * sampler_->steps_per_epoch();
  return std::clamp<std::int64_t>(plan().max_steps - state_.step, 0, steps);
}

void Training::say(const std::string& text) {
  if (round_.printer != nullptr) round_.printer->line(text);
}

}  // namespace ddp::train
