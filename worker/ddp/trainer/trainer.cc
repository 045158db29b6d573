#include "worker/ddp/trainer/trainer.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "common/base/parse_number.h"
#include "worker/ddp/averaging/distributed_optimizer.h"
#include "worker/ddp/engine/agent_link.h"
#include "worker/ddp/engine/init_distributed.h"
#include "worker/ddp/state/elastic_state.h"
#include "worker/ddp/state/load_tensors.h"
#include "worker/ddp/state/run_elastic.h"
#include "worker/ddp/tensors/mesh_reduce.h"
#include "worker/ddp/tensors/value_of.h"
#include "worker/ddp/trainer/evaluation.h"
#include "worker/ddp/trainer/fit_loop.h"
#include "worker/ddp/trainer/model_checkpoint.h"
#include "worker/ddp/trainer/progress_bar.h"
#include "worker/trainer_launch/launch.h"

namespace ddp {
namespace {

using trainer::Settings;

// `what` names the loader.
void check_loader(const DataLoader& loader, const char* what) {
  if (!loader.dataset) throw std::invalid_argument(fmt::format("{}: no data set", what));
  if (loader.dataset->size() < 1) {
    throw std::invalid_argument(fmt::format("{}: the data set is empty", what));
  }
  if (loader.batch_size < 1) {
    throw std::invalid_argument(
        fmt::format("{}: batch_size {}: expected at least 1", what, loader.batch_size));
  }
}

// Loads the folder's checkpoint into the module.
// step: -1 for the newest.
void load_module(TrainerModule& module, const std::string& directory, std::int64_t step) {
  const LoadedTensors loaded =
      value_of(load_tensors(directory, {.names = {"model/*"}, .step = step}));
  const at::NoGradGuard no_grad;
  const auto take = [&](const std::string& name, const at::Tensor& tensor) {
    const auto found = loaded.tensors.find("model/" + name);
    if (found == loaded.tensors.end() || found->second.sizes() != tensor.sizes()) {
      throw std::runtime_error(
          fmt::format("{}: {} is missing or has another shape: it is a "
                      "checkpoint of another module",
                      loaded.path, name));
    }
    at::Tensor(tensor).copy_(found->second);
  };
  for (const auto& parameter : module.named_parameters()) take(parameter.key(), *parameter);
  for (const auto& buffer : module.named_buffers()) take(buffer.key(), *buffer);
}

// All ranks' rows in the order of the samples that they are of.
at::Tensor in_order(const std::vector<at::Tensor>& rows, const std::vector<std::int64_t>& samples,
                    ProcessGroup& group) {
  const auto together = [](const std::vector<at::Tensor>& ranks) {
    std::vector<at::Tensor> some;  // A rank may have had no sample.
    for (const at::Tensor& rank : ranks) {
      if (rank.numel() > 0) some.push_back(rank);
    }
    return some.empty() ? at::empty({0}) : at::cat(some);
  };
  const at::Tensor all = mesh_reduce("predictions", together(rows).cpu(), together, group);
  const at::Tensor of = mesh_reduce(
      "samples of predictions", at::tensor(samples, at::TensorOptions(at::kLong)), together, group);
  if (all.numel() == 0) return all;
  return all.index_select(0, at::argsort(of));
}

}  // namespace

struct Trainer::Impl {
  Impl(TrainerOptions given, Settings read)
      : options(std::move(given)), settings(std::move(read)) {}

  TrainerOptions options;
  Settings settings;
  // Null if this process takes part in one round only.
  ElasticWorker* worker = nullptr;
  std::shared_ptr<ProcessGroup> group;  // Of the round; null until it is needed.
  std::shared_ptr<Logger> logger;       // Null on all ranks but 0, and without one.
  trainer::FitState state;
  std::vector<c10::Device> devices;

  // Of what is about to run on the module.
  void begin(const std::shared_ptr<TrainerModule>& module) {
    if (!module) throw std::invalid_argument("Trainer was given no module");
    if (options.deterministic) at::globalContext().setDeterministicAlgorithms(true, false);
    devices = trainer::devices_of(settings);
    module->to(devices.front());
    if (settings.type) module->to(*settings.type);
  }

  void take_checkpoint(TrainerModule& module, const std::string& from) const {
    if (from == "best") {
      // The newest one there may be of work that was lost, which another number of workers has not
      // overwritten.
      const ModelCheckpoint& best = model_checkpoint();
      load_module(module, best.directory_in(options.default_root_dir), best.best_step());
    } else if (!from.empty()) {
      load_module(module, directory_of(from), -1);
    }
    broadcast_master_param(module, *group);
  }

  std::string directory_of(const std::string& from) const {
    if (from == "last") {
      if (!options.default_root_dir.empty()) return options.default_root_dir + "/checkpoints";
      throw std::invalid_argument("Trainer: \"last\": there is no default_root_dir");
    }
    return from;
  }

  const ModelCheckpoint& model_checkpoint() const {
    for (const auto& callback : options.callbacks) {
      const auto* best = dynamic_cast<const ModelCheckpoint*>(callback.get());
      if (best != nullptr) return *best;
    }
    throw std::invalid_argument(
        "Trainer: \"best\": there is no ModelCheckpoint among the callbacks to save it");
  }

  void make_logger() {
    logger = nullptr;
    if (group->rank() != 0) return;
    logger = options.logger;
    if (logger || options.default_root_dir.empty()) return;
    const std::filesystem::path folder = options.default_root_dir;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      throw std::runtime_error(fmt::format("Trainer: default_root_dir {} cannot be made: {}",
                                           folder.string(), error.message()));
    }
    logger = std::make_shared<JsonLogger>(folder / "metrics.jsonl");
  }

  std::vector<std::shared_ptr<Callback>> callbacks_of_fit() const {
    auto callbacks = options.callbacks;
    const bool has_bar = std::any_of(callbacks.begin(), callbacks.end(), [](const auto& callback) {
      return callback->name() == ProgressBar().name();
    });
    if (options.enable_progress_bar && !has_bar) {
      callbacks.push_back(std::make_shared<ProgressBar>());
    }
    return callbacks;
  }

  // Tells the agent and the other ranks before the exception goes on.
  template <typename Task>
  auto watched(Task&& task) {
    try {
      return std::forward<Task>(task)();
    } catch (const CollectiveError& error) {
      agent_channel().error(error.what(), /*secondary=*/true);
      throw;
    } catch (const std::exception& error) {
      agent_channel().error(error.what(), /*secondary=*/false);
      if (group) group->abort(error.what());
      throw;
    }
  }

  MetricValues evaluate(Trainer& self, const std::shared_ptr<TrainerModule>& module,
                        const DataLoader& data, const Amount& limit, const std::string& from,
                        const trainer::EvaluationStep& step) {
    return watched([&] {
      check_loader(data, "Trainer");
      self.group();
      begin(module);
      take_checkpoint(*module, from);
      return trainer::evaluate({data, limit, devices.front(), settings.type}, *module, *group,
                               step);
    });
  }
};

Trainer::Trainer(TrainerOptions options) {
  Settings settings = trainer::read_settings(options);
  if (!options.group) {
    trainer::launch(trainer::plan_launch(settings.workers, process_variable));
  }
  impl_ = std::make_unique<Impl>(std::move(options), std::move(settings));
  const bool divides_state = impl_->settings.replica.grad_sync == GradSync::kZero1;
  if (!impl_->options.group && !divides_state) impl_->worker = elastic_worker();
}

Trainer::~Trainer() = default;

const std::shared_ptr<ProcessGroup>& Trainer::group() {
  if (!impl_->group) {
    impl_->group = impl_->options.group ? impl_->options.group : init_distributed();
    abort_by_agent(impl_->group);
  }
  return impl_->group;
}

void Trainer::fit(const std::shared_ptr<TrainerModule>& module, const DataLoader& train,
                  const std::optional<DataLoader>& validation) {
  std::optional<trainer::FitLoop> loop;
  impl_->watched([&] {
    check_loader(train, "fit");
    if (validation) check_loader(*validation, "fit, validation");
    if (impl_->worker == nullptr) group();
    impl_->begin(module);
    loop.emplace(trainer::FitLoop::Parts{.trainer = *this,
                                         .state = impl_->state,
                                         .settings = impl_->settings,
                                         .callbacks = impl_->callbacks_of_fit(),
                                         .module = module,
                                         .train = train,
                                         .validation = validation ? &*validation : nullptr,
                                         .devices = impl_->devices});
  });
  const auto train_round = [&](const std::shared_ptr<ProcessGroup>& group) {
    impl_->group = group;
    impl_->make_logger();
    loop->run(group, impl_->logger.get());
  };
  if (impl_->worker == nullptr) return impl_->watched([&] { train_round(impl_->group); });
  ElasticState state;
  // A process that replaces a lost one begins with the program's first fit(). In a later one, ranks
  // that disagree here end, and all begin anew from their checkpoints.
  static int fits = 0;
  ++fits;
  state.add_value(fmt::format("fit {}", fits), fits);
  loop->keep_in(state);
  run_elastic(*impl_->worker, state, [&](const std::shared_ptr<ProcessGroup>& group) {
    try {
      train_round(group);
    } catch (const CollectiveError&) {
      impl_->group.reset();  // ElasticWorker::leave() wants it.
      throw;
    }
  });
}

MetricValues Trainer::validate(const std::shared_ptr<TrainerModule>& module, const DataLoader& data,
                               const std::string& from) {
  return impl_->evaluate(
      *this, module, data, options().limit_val_batches, from,
      [&](const Batch& batch, std::int64_t index, std::span<const std::int64_t>) {
        module->validation_step(batch, index);
      });
}

MetricValues Trainer::test(const std::shared_ptr<TrainerModule>& module, const DataLoader& data,
                           const std::string& from) {
  return impl_->evaluate(*this, module, data, options().limit_test_batches, from,
                         [&](const Batch& batch, std::int64_t index,
                             std::span<const std::int64_t>) { module->test_step(batch, index); });
}

at::Tensor Trainer::predict(const std::shared_ptr<TrainerModule>& module, const DataLoader& data,
                            const std::string& from) {
  std::vector<at::Tensor> rows;
  std::vector<std::int64_t> of;
  impl_->evaluate(
      *this, module, data, options().limit_predict_batches, from,
      [&](const Batch& batch, std::int64_t index, std::span<const std::int64_t> samples) {
        rows.push_back(module->predict_step(batch, index));
        of.insert(of.end(), samples.begin(), samples.end());
      });
  return impl_->watched([&] { return in_order(rows, of, *impl_->group); });
}

const TrainerOptions& Trainer::options() const { return impl_->options; }
const TrainingPlace& Trainer::place() const { return impl_->state; }
const MetricValues& Trainer::metrics() const { return impl_->state.metrics; }
const MetricValues& Trainer::validation_metrics() const { return impl_->state.validation_metrics; }
bool Trainer::validates() const { return impl_->state.validates; }

const MetricValues& Trainer::progress_metrics() const { return impl_->state.sink.progress; }
const std::string& Trainer::stop_reason() const { return impl_->state.stop_reason; }
bool Trainer::logs_this_step() const { return impl_->state.logs_this_step; }
std::vector<double> Trainer::learning_rates() const { return impl_->state.learning_rates; }
std::int64_t Trainer::total_steps() const { return impl_->state.total_steps; }
std::int64_t Trainer::total_epochs() const { return impl_->state.total_epochs; }
double Trainer::last_loss() const { return impl_->state.last_loss; }
const Throughput& Trainer::throughput() const { return impl_->state.throughput; }

void Trainer::stop(const std::string& reason) {
  if (impl_->state.stopped) return;
  impl_->state.stopped = true;
  impl_->state.stop_reason = reason;
}

void Trainer::log_metrics(const MetricValues& values) {
  if (impl_->logger && !values.empty()) impl_->logger->log_metrics(impl_->state, values);
}

void Trainer::log_late(std::int64_t step, const std::string& name, double value) {
  if (impl_->logger) impl_->logger->log_late(step, name, value);
}

std::int64_t Trainer::restarts() const {
  constexpr const char* kName = "TORCHELASTIC_RESTART_COUNT";
  if (impl_->worker != nullptr) return impl_->worker->variable_or(kName, 0);
  const std::optional<std::string> text = process_variable(kName);
  return text ? parse_whole_number<std::int64_t>(*text).value_or(0) : 0;
}

}  // namespace ddp
