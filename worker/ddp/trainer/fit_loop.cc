#include "worker/ddp/trainer/fit_loop.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <utility>

#include <ATen/Context.h>
#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/errc.h"
#include "worker/ddp/engine/agent_link.h"
#include "worker/ddp/tensors/value_of.h"
#include "worker/ddp/trainer/convert.h"
#include "worker/ddp/trainer/evaluation.h"

namespace ddp::trainer {
namespace {

ConfiguredOptimizer configure(TrainerModule& module) {
  ConfiguredOptimizer configured = module.configure_optimizers();
  if (!configured.optimizer) {
    throw std::logic_error(module.name() + ": configure_optimizers() gave no optimizer");
  }
  return configured;
}

std::unique_ptr<Replica> make_replica(const Settings& settings,
                                      const std::shared_ptr<TrainerModule>& module,
                                      torch::optim::Optimizer& optimizer,
                                      const std::shared_ptr<ProcessGroup>& group) {
  auto replica = Replica::make(settings.replica, module, optimizer, group);
  if (!replica->averager() && replica->keeps_ranks_equal()) return replica;
  throw std::invalid_argument(
      fmt::format("Trainer: comm_hook \"{}\": expected a hook that leaves all ranks with the same "
                  "parameters; ddp-train and DiLoCo train replicas apart",
                  settings.replica.comm_hook));
}

DistributedSampler make_sampler(const DataLoader& train, std::int64_t accumulate,
                                const ProcessGroup& group) {
  // The sampler's batch is what all backwards of one update take together, because checkpoints are
  // made between updates.
  DistributedSampler sampler({.dataset_size = train.dataset->size(),
                              .batch_size = train.batch_size * accumulate,
                              .rank = group.rank(),
                              .world_size = group.size(),
                              .seed = train.seed,
                              .shuffle = train.shuffle,
                              .drop_last = train.drop_last,
                              .even = false});
  if (sampler.steps_per_epoch() > 0) return sampler;
  throw std::invalid_argument(
      fmt::format("fit: batch_size {}: {} workers with accumulate_grad_batches {} take {} samples "
                  "an update, expected at most the {} of the data set, or drop_last = false",
                  train.batch_size, group.size(), accumulate,
                  train.batch_size * accumulate * group.size(), train.dataset->size()));
}

}  // namespace

FitLoop::FitLoop(Parts parts)
    : parts_(std::move(parts)),
      state_(parts_.state),
      configured_(configure(*parts_.module)),
      optimizer_(*configured_.optimizer),
      step_(parts_.module, parts_.devices) {
  for (const auto& of : optimizer_.param_groups()) base_rates_.push_back(of.options().get_lr());
  constexpr std::int64_t kUsualEpochs = 1000;  // Lightning's.
  constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();
  max_steps_ = options().max_steps >= 0 ? options().max_steps : kNoLimit;
  max_epochs_ = options().max_epochs;
  if (max_epochs_ < 0) max_epochs_ = options().max_steps >= 0 ? kNoLimit : kUsualEpochs;
  if (!options().default_root_dir.empty()) {
    requests_ = std::make_unique<CheckpointRequests>(agent_channel());
  }
}

void FitLoop::keep_in(ElasticState& elastic) {
  elastic_ = &elastic;
  elastic.add_module("model", *parts_.module);
  elastic.add_optimizer("optimizer", optimizer_, *parts_.module);
  elastic.add_rng();
  register_values(elastic);
}

// Makes what belongs to the round. Then the training is where it goes on.
void FitLoop::begin_round() {
  sampler_.emplace(make_sampler(parts_.train, options().accumulate_grad_batches, group()));
  replica_ = make_replica(parts_.settings, parts_.module, optimizer_, group_);
  if (!options().default_root_dir.empty()) make_checkpointer();
  if (elastic_ != nullptr && replica_->comm_hook()) {
    elastic_->add_comm_hook("comm_hook", replica_->comm_hook());
  }
  if (elastic_ != nullptr && elastic_->resumed()) {
    elastic_->restore();  // Making the replica has drawn random numbers, and set the buffers.
    if (group().rank() == 0) {
      fmt::print(stderr, "Trainer: round {}: {} workers go on after update {}\n", group().round(),
                 group().size(), state_.place.step);
    }
  } else {
    state_ = {};
    at::manual_seed(options().seed + static_cast<std::uint64_t>(group().rank()));
    load_checkpoint();
  }
  if (elastic_ != nullptr) elastic_->commit(state_.place.step);
}

// Releases everything that holds the group.
void FitLoop::leave_round() {
  listening_.reset();
  checkpointer_.reset();
  replica_.reset();
  sampler_.reset();
  logger_ = nullptr;
  group_.reset();
}

void FitLoop::make_checkpointer() {
  checkpointer_ = std::make_unique<Checkpointer>(
      CheckpointOptions{.directory = options().default_root_dir + "/checkpoints",
                        .keep = options().keep_checkpoints},
      group_, agent_writer());
  checkpointer_->add_module("model", *parts_.module);
  if (ZeroRedundancyOptimizer* zero = replica_->zero()) {
    checkpointer_->add_optimizer("optimizer", *zero, *parts_.module);
  } else {
    checkpointer_->add_optimizer("optimizer", optimizer_, *parts_.module);
  }
  checkpointer_->add_rng();
  if (replica_->comm_hook()) checkpointer_->add_comm_hook("comm_hook", *replica_->comm_hook());
  register_values(*checkpointer_);
  value_of(checkpointer_->prepare());
}

// `state` is a Checkpointer or an ElasticState.
template <typename State>
void FitLoop::register_values(State& state) {
  state.add_value(
      "trainer",
      [this] {
        nlohmann::json callbacks = nlohmann::json::array();
        for (const auto& callback : parts_.callbacks) {
          callbacks.push_back({{"name", callback->name()}, {"state", callback->state()}});
        }
        return nlohmann::json{
            {"epoch", state_.place.epoch},      {"step", state_.place.step},
            {"position", state_.position},      {"batches", state_.batches},
            {"stopped", state_.stopped},        {"stop_reason", state_.stop_reason},
            {"metrics", state_.metrics},        {"validation_metrics", state_.validation_metrics},
            {"callbacks", std::move(callbacks)}};
      },
      [this](const nlohmann::json& saved) {
        state_.place.epoch = saved.at("epoch").get<std::int64_t>();
        state_.place.step = saved.at("step").get<std::int64_t>();
        state_.position = saved.at("position").get<std::int64_t>();
        state_.batches = saved.at("batches").get<std::int64_t>();
        state_.stopped = saved.at("stopped").get<bool>();
        state_.stop_reason = saved.at("stop_reason").get<std::string>();
        state_.metrics = saved.at("metrics").get<MetricValues>();
        state_.validation_metrics = saved.at("validation_metrics").get<MetricValues>();
        load_callbacks(saved.at("callbacks"));
      });
  state.add_value(
      "epoch_metrics", [this] { return state_.sink.epoch.state(); },
      [this](const nlohmann::json& saved) { state_.sink.epoch.load_state(saved); },
      /*per_rank=*/true);
}

// Gives each callback the next state saved under its name; a new callback keeps its own state.
void FitLoop::load_callbacks(const nlohmann::json& saved) {
  std::vector<nlohmann::json> left = saved.get<std::vector<nlohmann::json>>();
  for (const auto& callback : parts_.callbacks) {
    const auto found = std::find_if(left.begin(), left.end(), [&](const nlohmann::json& one) {
      return one.at("name") == callback->name();
    });
    if (found == left.end()) continue;
    callback->load_state(found->at("state"));
    left.erase(found);
  }
}

void FitLoop::load_checkpoint() {
  if (!checkpointer_) return;
  const Result<LoadReport> loaded = checkpointer_->load_latest();
  if (!loaded && loaded.error().code == Errc::kMismatch) {
    throw std::runtime_error(fmt::format(
        "Trainer: {}; for another training use another default_root_dir", loaded.error().message));
  }
  const LoadReport report = value_of(loaded);
  if (group().rank() != 0 || report.step < 0) return;
  for (const std::string& line : report.skipped) fmt::print(stderr, "Trainer: {}\n", line);
  fmt::print(stderr, "Trainer: going on after update {} ({})\n", report.step, report.path);
}

// For people: how much there is to do.
void FitLoop::count_steps() {
  const std::int64_t accumulate = options().accumulate_grad_batches;
  const std::int64_t updates = (batches_per_epoch() + accumulate - 1) / accumulate;
  if (updates == 0) return;
  const std::int64_t epochs = std::min(max_epochs_, (max_steps_ - 1) / updates + 1);
  state_.total_epochs = epochs;
  state_.total_steps = std::min(max_steps_, epochs * updates);
}

void FitLoop::run(std::shared_ptr<ProcessGroup> group, Logger* logger) {
  struct Leave {
    FitLoop& loop;
    ~Leave() { loop.leave_round(); }
  };
  const Leave leave{*this};
  group_ = std::move(group);
  logger_ = logger;
  begin_round();
  count_steps();
  if (logger_ != nullptr) logger_->begin(state_.place);
  parts_.module->train();
  if (requests_) listening_.emplace(*requests_);
  call(&Callback::on_fit_start);
  while (!is_over()) {
    if (state_.batches == 0) call(&Callback::on_train_epoch_start);
    const std::int64_t before = state_.batches;
    update();
    const bool ends = epoch_ends();
    if (validation_is_due(before)) validate();
    if (ends) end_epoch();
    save_if_due(ends);
    commit_if_due();
  }
  replica_->broadcast_buffers();
  if (checkpointer_) (void)value_of(checkpointer_->wait());
  call(&Callback::on_fit_end);
}

bool FitLoop::is_over() const {
  return state_.stopped || state_.place.step >= max_steps_ || state_.place.epoch >= max_epochs_ ||
         batches_per_epoch() == 0;
}

std::int64_t FitLoop::batches_per_epoch() const {
  const std::int64_t all = sampler_->steps_per_epoch() * options().accumulate_grad_batches;
  return options().limit_train_batches.of(all);
}

void FitLoop::update() {
  const TimePoint began = Clock::now();
  sampler_->set_epoch(state_.place.epoch, state_.position);
  const std::span<const std::int64_t> samples = sampler_->next_batch();
  const std::int64_t joint = sampler_->position() - state_.position;
  set_rates();
  state_.sink.step.clear();
  replica_->zero_grad();
  backwards(samples, joint);
  if (options().gradient_clip_val > 0) replica_->clip_grad_norm(options().gradient_clip_val);
  replica_->step();
  ++state_.place.step;
  state_.position = sampler_->position();
  state_.batches += options().accumulate_grad_batches;
  state_.throughput.add(joint, std::chrono::duration<double>(Clock::now() - began).count());
  agent_channel().progress(state_.place.step, state_.last_loss, state_.throughput.recent());
  log_step();
  call(&Callback::on_train_batch_end);
}

void FitLoop::backwards(std::span<const std::int64_t> samples, std::int64_t joint) {
  const auto batch = static_cast<std::size_t>(parts_.train.batch_size);
  std::int64_t index = state_.batches;
  for (; samples.size() > batch; samples = samples.subspan(batch)) {
    const std::unique_ptr<NoSync> no_sync = replica_->no_sync();
    backward(samples.first(batch), joint, index++);
  }
  backward(samples, joint, index);
}

// Adds the gradients of one batch to what is there, so that after all batches of the update the
// average over the ranks is the gradient of the mean loss of its `joint` samples. A rank without
// samples takes part in the others' collectives with one sample of weight zero.
void FitLoop::backward(std::span<const std::int64_t> samples, std::int64_t joint,
                       std::int64_t batch_index) {
  constexpr std::array<std::int64_t, 1> kAnySample = {0};
  const auto& type =
      parts_.settings.training_type ? parts_.settings.training_type : parts_.settings.type;
  const Batch batch =
      converted(parts_.train.dataset->get_batch(samples.empty() ? kAnySample : samples),
                parts_.devices.front(), type);
  state_.sink.batch_size = static_cast<double>(samples.size());
  const at::Tensor loss =
      replica_->forward([&] { return step_.loss_of(batch, batch_index, state_.sink); });
  const std::int64_t as_one_of_all = static_cast<std::int64_t>(samples.size()) * group().size();
  if (samples.empty()) {
    loss.mul(0).backward();
  } else if (as_one_of_all == joint) {
    loss.backward();
  } else {
    loss.div(static_cast<double>(joint) / static_cast<double>(as_one_of_all)).backward();
  }
  state_.last_loss = loss.item<double>();
}

void FitLoop::set_rates() {
  auto& groups = optimizer_.param_groups();
  const double factor = configured_.lr_lambda ? configured_.lr_lambda(state_.place) : 1.0;
  state_.learning_rates.resize(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    state_.learning_rates[i] = base_rates_[i] * factor;
    groups[i].options().set_lr(state_.learning_rates[i]);
  }
}

// The mean over the ranks costs an exchange, so not in every update.
void FitLoop::log_step() {
  state_.logs_this_step = state_.place.step % options().log_every_n_steps == 0;
  if (!state_.logs_this_step) return;
  const MetricValues values = state_.sink.step.mean(group());
  for (const auto& [name, value] : values) state_.metrics[name] = value;
  parts_.trainer.log_metrics(values);
}

bool FitLoop::epoch_ends() const {
  return state_.batches >= batches_per_epoch() || sampler_->steps_left() == 0;
}

bool FitLoop::validation_is_due(std::int64_t batches_before) const {
  if (parts_.validation == nullptr || options().limit_val_batches.of(1) == 0) return false;
  if ((state_.place.epoch + 1) % options().check_val_every_n_epoch != 0) return false;
  const std::int64_t interval = options().val_check_interval.of(batches_per_epoch());
  if (interval <= 0) return false;
  return state_.batches / interval > batches_before / interval;
}

void FitLoop::validate() {
  replica_->broadcast_buffers();
  TrainerModule& module = *parts_.module;
  state_.validation_metrics = evaluate(
      {*parts_.validation, options().limit_val_batches, parts_.devices.front(),
       parts_.settings.type},
      module, group(), [&](const Batch& batch, std::int64_t index, std::span<const std::int64_t>) {
        module.validation_step(batch, index);
      });
  for (const auto& [name, value] : state_.validation_metrics) state_.metrics[name] = value;
  parts_.trainer.log_metrics(state_.validation_metrics);
  call(&Callback::on_validation_end);
}

void FitLoop::end_epoch() {
  MetricValues values;
  for (const auto& [name, value] : state_.sink.epoch.mean(group())) {
    values[name + "_epoch"] = value;
    state_.metrics[name + "_epoch"] = value;
  }
  parts_.trainer.log_metrics(values);
  call(&Callback::on_train_epoch_end);
  state_.sink.epoch.clear();
  ++state_.place.epoch;
  state_.position = 0;
  state_.batches = 0;
}

void FitLoop::save_if_due(bool epoch_ended) {
  if (!checkpointer_) return;
  using Asked = CheckpointRequests::Asked;
  const Asked asked = requests_->after_step(group(), state_.place.step);
  const std::int64_t every = options().checkpoint_every_n_steps;
  const bool is_its_turn = every > 0 && state_.place.step % every == 0;
  if (!epoch_ended && !is_its_turn && !is_over() && asked == Asked::kNothing) return;
  (void)value_of(checkpointer_->save(state_.place.step, state_.place.epoch));
  if (asked == Asked::kCheckpointAndStop) stop_if_told();
}

void FitLoop::commit_if_due() {
  if (elastic_ == nullptr) return;
  if (elastic_->is_commit_due() || is_over()) elastic_->commit(state_.place.step);
}

// If this process got the signal, ends it as the signal would have done. Ranks that did not get it
// continue with the ranks that are left, if the job allows that.
void FitLoop::stop_if_told() {
  (void)value_of(checkpointer_->wait());
  if (group().rank() == 0) {
    fmt::print(stderr, "Trainer: SIGTERM: the checkpoint of update {} is complete\n",
               state_.place.step);
  }
  listening_.reset();
  listening_.emplace(*requests_);
}

void FitLoop::call(Hook hook) {
  for (const auto& callback : parts_.callbacks) ((*callback).*hook)(parts_.trainer, *parts_.module);
}

}  // namespace ddp::trainer
