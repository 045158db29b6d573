#include "worker/ddp/trainer/fit_loop.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "common/base/errc.h"
#include "worker/ddp/engine/agent_link.h"
#include "worker/ddp/tensors/value_of.h"
#include "worker/ddp/trainer/convert.h"
#include "worker/ddp/trainer/evaluation.h"
#include "worker/runtime/trace_scope.h"

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

std::int64_t divided_up(std::int64_t number, std::int64_t by) {
  return number / by + (number % by > 0 ? 1 : 0);
}

loop::Plan plan_of(const TrainerOptions& options, const DataLoader& train) {
  constexpr std::int64_t kUsualEpochs = 1000;  // Lightning's.
  constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();
  const bool counts_steps = options.max_steps >= 0;
  loop::Plan plan;
  plan.sampling.dataset_size = train.dataset->size();
  plan.sampling.batch_size = train.batch_size * options.accumulate_grad_batches;
  plan.sampling.seed = train.seed;
  plan.sampling.shuffle = train.shuffle;
  plan.sampling.drop_last = train.drop_last;
  plan.seed = options.seed;
  plan.batch_size = train.batch_size;
  plan.clip_grad_norm = options.gradient_clip_val;
  plan.max_steps = counts_steps ? options.max_steps : kNoLimit;
  plan.max_epochs = options.max_epochs;
  if (options.max_epochs < 0) plan.max_epochs = counts_steps ? kNoLimit : kUsualEpochs;
  plan.saves = !options.default_root_dir.empty();
  plan.checkpoint_every = options.checkpoint_every_n_steps;
  return plan;
}

}  // namespace

FitLoop::FitLoop(Parts parts)
    : TrainingLoop(plan_of(parts.trainer.options(), parts.train), parts.state, agent_channel()),
      parts_(std::move(parts)),
      state_(parts_.state),
      configured_(configure(*parts_.module)),
      optimizer_(*configured_.optimizer),
      step_(parts_.module, parts_.devices) {
  for (const auto& of : optimizer_.param_groups()) base_rates_.push_back(of.options().get_lr());
}

void FitLoop::keep_in(ElasticState& elastic) {
  TrainingLoop::keep_in(elastic, *parts_.module, optimizer_);
  register_values(elastic);
}

void FitLoop::start_over() { state_ = {}; }

void FitLoop::make_round() {
  if (sampler_->steps_per_epoch() == 0) {
    throw std::invalid_argument(fmt::format(
        "fit: batch_size {}: {} workers with accumulate_grad_batches {} take {} samples an update, "
        "expected at most the {} of the data set, or drop_last = false",
        plan().batch_size, ranks(), options().accumulate_grad_batches,
        plan().sampling.batch_size * ranks(), plan().sampling.dataset_size));
  }
  replica_ = make_replica(parts_.settings, parts_.module, optimizer_, group_);
  if (!plan().saves) return;
  checkpointer_ = std::make_unique<Checkpointer>(
      CheckpointOptions{.directory = options().default_root_dir + "/checkpoints",
                        .keep = options().keep_checkpoints},
      group_, agent_writer());
  loop::add_training(*checkpointer_, *parts_.module, optimizer_, *replica_);
  register_values(*checkpointer_);
  value_of(checkpointer_->prepare());
}

void FitLoop::leave_round() {
  checkpointer_.reset();
  TrainingLoop::leave_round();
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
        return nlohmann::json{{"epoch", state_.epoch},
                              {"step", state_.step},
                              {"position", state_.position},
                              {"stopped", state_.stopped},
                              {"stop_reason", state_.stop_reason},
                              {"metrics", state_.metrics},
                              {"validation_metrics", state_.validation_metrics},
                              {"callbacks", std::move(callbacks)}};
      },
      [this](const nlohmann::json& saved) {
        state_.epoch = saved.at("epoch").get<std::int64_t>();
        state_.step = saved.at("step").get<std::int64_t>();
        state_.position = saved.at("position").get<std::int64_t>();
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

void FitLoop::resume(bool goes_on) {
  const bool prints = group().rank() == 0;
  if (goes_on) {
    if (!prints) return;
    fmt::print(stderr, "Trainer: round {}: {} workers go on after update {}\n", group().round(),
               group().size(), state_.step);
    return;
  }
  if (!checkpointer_) return;
  const Result<LoadReport> loaded = checkpointer_->load_latest();
  if (!loaded && loaded.error().code == Errc::kMismatch) {
    throw std::runtime_error(fmt::format(
        "Trainer: {}; for another training use another default_root_dir", loaded.error().message));
  }
  const LoadReport report = value_of(loaded);
  if (!prints || report.step < 0) return;
  for (const auto* lines : {&report.skipped, &report.notes}) {
    for (const std::string& line : *lines) fmt::print(stderr, "Trainer: {}\n", line);
  }
  fmt::print(stderr, "Trainer: going on after update {} ({})\n", report.step, report.path);
}

// What has been done of the epoch may have been done by another number of workers, whose batches
// had other numbers of samples. The sampler knows what is left.
void FitLoop::find_place_in_epoch() {
  sampler_->set_epoch(state_.epoch, state_.position);
  state_.batches =
      (sampler_->steps_per_epoch() - sampler_->steps_left()) * options().accumulate_grad_batches;
}

// For people: how much there is to do.
void FitLoop::count_steps() {
  const std::int64_t accumulate = options().accumulate_grad_batches;
  const std::int64_t batches = batches_per_epoch();
  if (batches == 0) return;
  state_.total_epochs = plan().max_epochs;
  state_.total_steps = state_.step;
  if (is_over()) return;
  const std::int64_t left =
      std::min(sampler_->steps_left(),
               divided_up(std::max<std::int64_t>(batches - state_.batches, 0), accumulate));
  const std::int64_t updates = divided_up(batches, accumulate);
  const std::int64_t most = plan().max_steps - state_.step;
  const std::int64_t epochs_after =
      std::min(plan().max_epochs - state_.epoch - 1,
               divided_up(std::max<std::int64_t>(most - left, 0), updates));
  state_.total_epochs = state_.epoch + 1 + epochs_after;
  state_.total_steps += std::min(most, left + epochs_after * updates);
}

void FitLoop::run(std::shared_ptr<ProcessGroup> group, Logger* logger) {
  in_round(std::move(group), [&] {
    begin_round();
    find_place_in_epoch();
    count_steps();
    state_.validates = validates();
    if (logger != nullptr) logger->begin(state_);
    report_checkpoints();
    parts_.module->train();
    call(&Callback::on_fit_start);
    train_to_the_end();
    replica_->broadcast_buffers();
    if (checkpointer_) (void)value_of(checkpointer_->wait());
    call(&Callback::on_fit_end);
  });
}

bool FitLoop::is_over() const {
  return state_.stopped || TrainingLoop::is_over() || batches_per_epoch() == 0;
}

std::int64_t FitLoop::batches_per_epoch() const {
  const std::int64_t all = sampler_->steps_per_epoch() * options().accumulate_grad_batches;
  return options().limit_train_batches.of(all);
}

void FitLoop::begin_step() {
  if (state_.batches == 0) call(&Callback::on_train_epoch_start);
  set_rates();
  state_.sink.step.clear();
  batch_index_ = state_.batches;
}

at::Tensor FitLoop::loss_of(std::span<const std::int64_t> samples, bool counts) {
  const auto& type =
      parts_.settings.training_type ? parts_.settings.training_type : parts_.settings.type;
  const Batch batch = [&] {
    const TraceScope scope("input", "batch");
    return converted(parts_.train.dataset->get_batch(samples), parts_.devices.front(), type);
  }();
  state_.sink.batch_size = counts ? static_cast<double>(samples.size()) : 0;
  return replica_->forward([&] { return step_.loss_of(batch, batch_index_++, state_.sink); });
}

bool FitLoop::after_step(const loop::StepReport& report) {
  const std::int64_t before = state_.batches;
  state_.batches += options().accumulate_grad_batches;
  state_.last_loss = last_loss_;
  state_.throughput.add(report.samples, report.seconds);
  channel().progress(state_.step, state_.last_loss, state_.throughput.recent(), state_.total_steps);
  log_step();
  call(&Callback::on_train_batch_end);
  const bool ends = state_.batches >= batches_per_epoch() || sampler_->steps_left() == 0;
  if (validation_is_due(before)) validate();
  if (ends) close_epoch();
  return ends;
}

void FitLoop::set_rates() {
  auto& groups = optimizer_.param_groups();
  const double factor = configured_.lr_lambda ? configured_.lr_lambda(state_) : 1.0;
  state_.learning_rates.resize(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    state_.learning_rates[i] = base_rates_[i] * factor;
    groups[i].options().set_lr(state_.learning_rates[i]);
  }
}

// The mean over the ranks costs an exchange, so not in every update.
void FitLoop::log_step() {
  state_.logs_this_step = state_.step % options().log_every_n_steps == 0;
  if (!state_.logs_this_step) return;
  const MetricValues values = state_.sink.step.mean(group());
  for (const auto& [name, value] : values) state_.metrics[name] = value;
  parts_.trainer.log_metrics(values);
}

bool FitLoop::validates() const {
  return parts_.validation != nullptr && options().limit_val_batches.of(1) > 0 &&
         options().val_check_interval.of(batches_per_epoch()) > 0;
}

bool FitLoop::validation_is_due(std::int64_t batches_before) const {
  if (!validates() || (state_.epoch + 1) % options().check_val_every_n_epoch != 0) return false;
  const std::int64_t interval = options().val_check_interval.of(batches_per_epoch());
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

// More workers than before, with drop_last, have too few samples left for an update. So the update
// before was the epoch's last, and what belongs to that has not been done.
void FitLoop::end_epoch() {
  state_.batches = batches_per_epoch();
  if (validation_is_due(state_.batches - 1)) validate();
  close_epoch();
}

void FitLoop::close_epoch() {
  MetricValues values;
  for (const auto& [name, value] : state_.sink.epoch.mean(group())) {
    values[name + "_epoch"] = value;
    state_.metrics[name + "_epoch"] = value;
  }
  parts_.trainer.log_metrics(values);
  call(&Callback::on_train_epoch_end);
  state_.sink.epoch.clear();
  ++state_.epoch;
  state_.position = 0;
  state_.batches = 0;
}

void FitLoop::save_checkpoint() { (void)value_of(checkpointer_->save(state_.step, state_.epoch)); }

void FitLoop::report_checkpoints() {
  if (!checkpointer_) return;
  checkpointer_->tell_times({.held =
                                 [this](std::int64_t /*step*/, double seconds) {
                                   for (const auto& callback : parts_.callbacks)
                                     callback->on_checkpoint(parts_.trainer, seconds);
                                 },
                             .written =
                                 [this](std::int64_t step, double seconds) {
                                   for (const auto& callback : parts_.callbacks)
                                     callback->on_checkpoint_written(parts_.trainer, step, seconds);
                                 }});
  if (state_.step > 0) checkpointer_->tell_newest(state_.step);
}

// If this process got the signal, ends it as the signal would have done. Ranks that did not get it
// continue with the ranks that are left, if the job allows that.
void FitLoop::stop_if_told() {
  (void)value_of(checkpointer_->wait());
  if (group().rank() == 0) {
    fmt::print(stderr, "Trainer: SIGTERM: the checkpoint of update {} is complete\n", state_.step);
  }
  listening_.reset();
  listening_.emplace(*requests_);
}

void FitLoop::call(Hook hook) {
  for (const auto& callback : parts_.callbacks) ((*callback).*hook)(parts_.trainer, *parts_.module);
}

}  // namespace ddp::trainer
