#include "worker/train/trainer.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/train/agreement.h"
#include "worker/train/evaluate.h"
#include "worker/train/failure.h"
#include "worker/train/learning_rate.h"
#include "worker/train/models/gpt.h"
#include "worker/train/models/names.h"
#include "worker/train/optimizer.h"

namespace ddp::train {

Trainer::Trainer(Parts parts) : parts_(std::move(parts)) {
  const Options& options = parts_.options;
  at::manual_seed(options.seed);
  model_ = make_model({.name = options.model,
                       .batch_norm = options.batch_norm,
                       .dropout = options.dropout,
                       .num_classes = options.num_classes,
                       .devices = parts_.devices,
                       .micro_batches = options.micro_batches,
                       .gpt = options.gpt});
  optimizer_ = make_optimizer(options, model_->parameters());
  if (options.checkpoint_dir.empty()) return;
  checkpoint_writer_ = std::make_shared<CheckpointWriter>(&parts_.channel);
  requests_ = std::make_unique<CheckpointRequests>(parts_.channel);
}

void Trainer::commit_if_due() {
  if (elastic_ == nullptr) return;
  const bool is_last = sampler_->steps_left() == 0 || limit_reached();
  if (!elastic_->is_commit_due() && !is_last) return;
  if (logical_ != nullptr) logical_->gather();
  elastic_->commit(state_.step);
}

Summary Trainer::run(Round round) {
  struct Leave {
    Trainer& trainer;
    ~Leave() { trainer.leave_round(); }
  };
  const Leave leave{*this};
  begin_round(std::move(round));
  return train_to_the_end();
}

Summary Trainer::train_to_the_end() {
  open_rate_log();
  std::optional<CheckpointRequests::Listening> listening;
  if (requests_) listening.emplace(*requests_);
  model_->train();
  while (state_.epoch < parts_.options.epochs && train_epoch()) {
  }
  const bool mid_epoch = state_.position > 0;
  if (mid_epoch) train_loss_ = mean_loss();
  const bool changed = replica_->bring_together();
  // Also if there was nothing left to train in this process.
  if (mid_epoch || changed || !test_accuracy_) evaluate();

  const Options& options = parts_.options;
  Summary summary;
  summary.model = options.model;
  summary.data = options.data;
  summary.world_size = parts_.group->size();
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
  summary.threads = parts_.threads;
  if (replica_->keeps_ranks_equal()) check_same_weights(summary.weights_sha256);
  if (checkpoint_) checkpoint_->wait();
  if (trace_) write_trace();
  say_sample();
  return summary;
}

void Trainer::say_sample() {
  const Options& options = parts_.options;
  if (!is_for_text(options.model) || options.sample_bytes == 0 || parts_.printer == nullptr) return;
  std::string text =
      sample_text(*model_, options.gpt.context, "\n", options.sample_bytes, options.seed);
  // Only printable ASCII and newlines: a terminal could take other bytes for commands.
  std::replace_if(
      text.begin(), text.end(),
      [](unsigned char byte) { return byte != '\n' && (byte < 0x20 || byte > 0x7e); }, '.');
  say(fmt::format("sample: {}", text));
}

bool Trainer::train_epoch() {
  sampler_->set_epoch(state_.epoch, state_.position);
  while (sampler_->steps_left() > 0) {
    if (limit_reached()) return false;
    const TimePoint start = Clock::now();
    double loss = 0;
    const std::span<const std::int64_t> indices = sampler_->next_batch();
    {
      const Trace::Scope scope(trace_.get(), "loop", fmt::format("step {}", state_.step + 1));
      loss = train_step(indices);
    }
    ++state_.step;
    const std::int64_t before = std::exchange(state_.position, sampler_->position());
    report(loss, state_.position - before,
           std::chrono::duration<double>(Clock::now() - start).count());
    evaluate_if_due();
    save_if_due();
    commit_if_due();
  }
  finish_epoch();
  return true;
}

// Returns the mean loss of this worker's samples.
double Trainer::train_step(std::span<const std::int64_t> indices) {
  const Options& options = parts_.options;
  const double done =
      static_cast<double>(sampler_->position()) / static_cast<double>(parts_.data.train->size());
  learning_rate_ = learning_rate(options, options.lr * ranks(), state_.epoch, done);
  set_learning_rate(*optimizer_, learning_rate_);
  replica_->zero_grad();
  const std::int64_t joint = sampler_->position() - state_.position;
  double loss = 0;
  if (logical_ != nullptr) {
    loss = logical_ranks_step(joint);
  } else {
    loss = backwards(indices, joint);
    state_.loss_sum += loss * static_cast<double>(indices.size());
    state_.loss_count += static_cast<std::int64_t>(indices.size());
  }
  if (options.clip_grad_norm > 0) replica_->clip_grad_norm(options.clip_grad_norm);
  replica_->step();
  return loss;
}

// Runs the backwards of all logical ranks of this worker. Returns the mean loss of their samples.
double Trainer::logical_ranks_step(std::int64_t joint) {
  double sum = 0;
  std::size_t samples = 0;
  for (Rank logical = logical_->own().begin; logical < logical_->own().end; ++logical) {
    const std::vector<std::int64_t> indices = sampler_->batch_of(logical);
    logical_->begin(logical);
    const double loss = backwards(indices, joint) * static_cast<double>(indices.size());
    logical_->end(logical);
    logical_ranks_->add_loss(logical, loss, static_cast<std::int64_t>(indices.size()));
    sum += loss;
    samples += indices.size();
  }
  return sum / static_cast<double>(std::max<std::size_t>(samples, 1));
}

// Runs all backwards of one rank's samples in a step. Returns the mean of their losses.
double Trainer::backwards(std::span<const std::int64_t> indices, std::int64_t joint) {
  const auto batch = static_cast<std::size_t>(parts_.options.batch_size);
  const auto samples = static_cast<double>(std::max<std::size_t>(indices.size(), 1));
  double loss = 0;
  for (; indices.size() > batch; indices = indices.subspan(batch)) {
    const std::unique_ptr<NoSync> no_sync = replica_->no_sync();
    loss += backward(indices.first(batch), joint);
  }
  loss += backward(indices, joint);
  return loss / samples;
}

// Runs one backward, which adds its gradients to those already there. After all backwards of the
// step, the average of the gradients over the ranks is the gradient of the mean loss of the step's
// `joint` samples. Returns the sum of the losses of `indices`. A rank without samples runs the same
// collectives as the others, with one sample of weight 0.
double Trainer::backward(std::span<const std::int64_t> indices, std::int64_t joint) {
  constexpr std::array<std::int64_t, 1> kAnySample = {0};
  parts_.data.train->fill(indices.empty() ? kAnySample : indices, batch_);
  const at::Tensor output =
      replica_->forward([&] { return model_->forward(batch_.input.to(parts_.devices.front())); });
  const at::Tensor loss = model_->loss(output, batch_.target.to(output.device()));
  if (indices.empty()) {
    loss.mul(0).backward();
    return 0;
  }
  const auto samples = static_cast<std::int64_t>(indices.size());
  const std::int64_t as_one_of_all = samples * ranks();
  if (as_one_of_all == joint) {
    loss.backward();
  } else {
    loss.div(static_cast<double>(joint) / static_cast<double>(as_one_of_all)).backward();
  }
  return loss.item<double>() * static_cast<double>(samples);
}

void Trainer::evaluate_if_due() {
  const std::int64_t every = parts_.options.eval_every;
  if (every == 0 || state_.step % every != 0) return;
  evaluate();
  if (!test_accuracy_) return;
  say(fmt::format("step {}: test accuracy {:.2f} %", state_.step, 100 * *test_accuracy_));
  if (!rate_log_) return;
  const auto written = rate_log_->accuracy(state_.epoch, state_.step, *test_accuracy_);
  if (!written) say("note: --rates " + written.error().message);
}

void Trainer::save_if_due() {
  if (!checkpoint_) return;
  using Asked = CheckpointRequests::Asked;
  const Asked asked = requests_->after_step(*parts_.group, state_.step);
  // A checkpoint on request and the last one must not be skipped because the writer is busy.
  if (asked != Asked::kNothing || steps_to_go() == 0) checkpoint_->wait();
  const std::int64_t every = parts_.options.checkpoint_every;
  if ((every > 0 && state_.step % every == 0) || sampler_->steps_left() == 0 || limit_reached() ||
      asked != Asked::kNothing)
    checkpoint_->save();
  if (asked == Asked::kCheckpointAndStop) stop_if_told();
}

// Only ranks that got the signal stop. The others continue, if the job allows fewer workers.
void Trainer::stop_if_told() {
  const bool complete = checkpoint_->wait();
  if (!requests_->take_stop()) return;
  throw Failure(kExitSignalBase + SIGTERM,
                fmt::format("stopped by SIGTERM after step {}, {}", state_.step,
                            complete ? "whose checkpoint is complete" : "without a checkpoint"));
}

// The checkpoint of an epoch's last step is written before this, so a run that resumes from it also
// comes here.
void Trainer::finish_epoch() {
  train_loss_ = mean_loss();
  evaluate();
  std::string text = fmt::format("epoch {}/{}: train loss {:.4f}", state_.epoch + 1,
                                 parts_.options.epochs, train_loss_);
  if (test_accuracy_) text += fmt::format(", test accuracy {:.2f} %", 100 * *test_accuracy_);
  say(text);
  ++state_.epoch;
  state_.position = 0;
  state_.loss_sum = 0;
  state_.loss_count = 0;
  if (logical_ranks_) logical_ranks_->clear_losses();
}

void Trainer::evaluate() {
  replica_->broadcast_buffers();
  if (!model_->classifies() || parts_.data.test->size() == 0) return;
  // The activations of so many digits fit into a core's cache.
  const bool is_small = is_for_digits(parts_.options.model);
  const std::int64_t batch = is_small ? 250 : parts_.options.batch_size;
  const Rank rank = parts_.group->rank();
  const RankRange shares = logical_ != nullptr ? logical_->own() : RankRange{rank, rank + 1};
  test_accuracy_ =
      evaluate_accuracy(*model_, *parts_.data.test, batch, {shares, ranks()}, *parts_.group);
}

double Trainer::mean_loss() {
  if (logical_ != nullptr) {
    logical_->gather();
    return logical_ranks_->mean_loss();
  }
  std::array<double, 2> sums = {state_.loss_sum, static_cast<double>(state_.loss_count)};
  parts_.group
      ->all_reduce({sums.data(), sums.size(), DType::kF64}, ReduceOp::kSum,
                   {.timeout = {}, .tag = "mean loss"})
      ->wait();
  return sums[0] / sums[1];
}

void Trainer::report(double loss, std::int64_t samples, double seconds) {
  throughput_.add(samples, seconds);
  log_rate(loss, samples, seconds);
  parts_.channel.progress(state_.step, loss, throughput_.recent());
  if (parts_.printer == nullptr) return;
  Progress progress;
  progress.epoch = state_.epoch;
  progress.epochs = parts_.options.epochs;
  progress.step = state_.step;
  progress.total_steps = state_.step + steps_to_go();
  progress.loss = loss;
  progress.samples_per_second = throughput_.recent();
  progress.eta_seconds = throughput_.step_seconds() * static_cast<double>(steps_to_go());
  parts_.printer->step(progress, Clock::now());
}

void Trainer::open_rate_log() {
  const Options& options = parts_.options;
  if (options.rates.empty() || parts_.group->rank() != 0) return;
  const bool goes_on = state_.step > 0 || (elastic_ != nullptr && elastic_->resumed());
  auto log = RateLog::open(options.rates, goes_on, options.log_every);
  if (!log) throw Failure(kExitInvalidValue, "--rates " + log.error().message);
  rate_log_ = *std::move(log);
}

void Trainer::log_rate(double loss, std::int64_t samples, double seconds) {
  if (!rate_log_) return;
  const auto written = rate_log_->step({.epoch = state_.epoch,
                                        .step = state_.step,
                                        .loss = loss,
                                        .learning_rate = learning_rate_,
                                        .samples = samples,
                                        .seconds = seconds});
  if (!written) say("note: --rates " + written.error().message);
}

void Trainer::write_trace() {
  try {
    trace_->write(parts_.options.trace, *parts_.group);
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::runtime_error& unwritable) {
    throw Failure(kExitInvalidValue, fmt::format("--trace {}", unwritable.what()));
  }
}

// After data-parallel training all ranks must have the same bytes. If not, the result is wrong.
void Trainer::check_same_weights(const std::string& sha256) {
  const auto size = static_cast<std::size_t>(parts_.group->size());
  std::string own = sha256;
  std::string all(own.size() * size, '\0');
  parts_.group
      ->all_gather({own.data(), own.size(), DType::kU8}, {all.data(), all.size(), DType::kU8},
                   {.timeout = {}, .tag = "weights_sha256"})
      ->wait();
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::string other = all.substr(rank * own.size(), own.size());
    if (other == all.substr(0, own.size())) continue;
    throw Failure(kExitInternal,
                  fmt::format("the ranks ended with different weights: {} on rank 0, {} on rank {}",
                              all.substr(0, own.size()), other, rank));
  }
}

bool Trainer::limit_reached() const {
  return parts_.options.max_steps > 0 && state_.step >= parts_.options.max_steps;
}

std::int64_t Trainer::steps_to_go() const {
  const std::int64_t epochs_after = parts_.options.epochs - state_.epoch - 1;
  const std::int64_t steps = sampler_->steps_left() + epochs_after * sampler_->steps_per_epoch();
  if (parts_.options.max_steps == 0) return steps;
  return std::clamp<std::int64_t>(parts_.options.max_steps - state_.step, 0, steps);
}

int Trainer::ranks() const {
  const int logical = parts_.options.logical_world_size;
  return logical > 0 ? logical : parts_.group->size();
}

void Trainer::say(const std::string& text) {
  if (parts_.printer != nullptr) parts_.printer->line(text);
}

}  // namespace ddp::train
