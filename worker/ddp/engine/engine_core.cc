#include "worker/ddp/engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "worker/ddp/averaging/clip_grad.h"
#include "worker/ddp/engine/agent_link.h"
#include "worker/ddp/engine/init_distributed.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/tensors/module_state.h"
#include "worker/ddp/tensors/value_of.h"
#include "worker/ddp/zero/zero_redundancy_optimizer.h"
#include "worker/engine_config/loss_scaler.h"
#include "worker/engine_config/lr_schedule.h"
#include "worker/runtime/control_channel.h"

namespace ddp::engine {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerConfig& config,
                                                        std::vector<at::Tensor> parameters) {
  using namespace torch::optim;
  if (config.type == "SGD") {
    return std::make_unique<SGD>(std::move(parameters), SGDOptions(config.lr)
                                                            .momentum(config.momentum)
                                                            .dampening(config.dampening)
                                                            .nesterov(config.nesterov)
                                                            .weight_decay(config.weight_decay));
  }
  if (config.type == "Adam") {
    return std::make_unique<Adam>(std::move(parameters), AdamOptions(config.lr)
                                                             .betas({config.beta1, config.beta2})
                                                             .eps(config.eps)
                                                             .weight_decay(config.weight_decay)
                                                             .amsgrad(config.amsgrad));
  }
  if (config.type == "AdamW") {
    return std::make_unique<AdamW>(std::move(parameters), AdamWOptions(config.lr)
                                                              .betas({config.beta1, config.beta2})
                                                              .eps(config.eps)
                                                              .weight_decay(config.weight_decay)
                                                              .amsgrad(config.amsgrad));
  }
  if (config.type == "Adagrad") {
    return std::make_unique<Adagrad>(
        std::move(parameters),
        AdagradOptions(config.lr).eps(config.eps).weight_decay(config.weight_decay));
  }
  return std::make_unique<RMSprop>(std::move(parameters), RMSpropOptions(config.lr)
                                                              .eps(config.eps)
                                                              .momentum(config.momentum)
                                                              .weight_decay(config.weight_decay));
}

void check_devices(const Config& config, const std::vector<at::Tensor>& parameters) {
  const bool on_cpu = std::any_of(parameters.begin(), parameters.end(),
                                  [](const at::Tensor& parameter) { return parameter.is_cpu(); });
  if (config.fp16.enabled && on_cpu) {
    throw std::invalid_argument(
        "fp16.enabled: LibTorch cannot compute with float16 on a CPU; set bf16.enabled there");
  }
}

// Adds the time that it lives.
class Stopwatch {
 public:
  explicit Stopwatch(std::chrono::duration<double>& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += Clock::now() - began_; }

 private:
  std::chrono::duration<double>& sum_;
  const TimePoint began_ = Clock::now();
};

}  // namespace

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Config& config,
                                                      const std::vector<at::Tensor>& parameters) {
  if (!config.optimizer) {
    throw std::invalid_argument(
        "the configuration has no optimizer, and initialize() was given none");
  }
  if (parameters.empty()) throw std::invalid_argument("initialize() was given no parameters");
  return make_optimizer(*config.optimizer, parameters);
}

DistributedDataParallelOptions data_parallel_options(const Config& config) {
  DistributedDataParallelOptions options;
  options.bucket_cap_mb = config.reduce_bucket_mb;
  options.gradient_as_bucket_view = true;
  if (config.bf16) options.mixed_precision.param_dtype = at::kBFloat16;
  if (config.fp16.enabled) options.mixed_precision.param_dtype = at::kHalf;
  // Sixteen-bit sums over many ranks lose precision.
  if (config.bf16) options.mixed_precision.reduce_dtype = at::kFloat;
  return options;
}

EngineCore::EngineCore(std::shared_ptr<torch::nn::Module> module,
                       DistributedDataParallelCore& model,
                       const std::vector<at::Tensor>& parameters,
                       torch::optim::Optimizer* optimizer, Config config,
                       std::shared_ptr<ProcessGroup> group)
    : module_(std::move(module)),
      model_(model),
      config_(std::move(config)),
      group_(std::move(group)),
      own_optimizer_(optimizer == nullptr ? optimizer_of(config_, parameters) : nullptr),
      optimizer_(optimizer == nullptr ? own_optimizer_.get() : optimizer),
      scaler_(std::make_unique<LossScaler>(config_.fp16)) {
  parameters_ = parameters_of(*optimizer_);
  check_devices(config_, parameters_);
  for (const auto& of : optimizer_->param_groups()) base_rates_.push_back(of.options().get_lr());
  if (config_.zero_stage == 1) {
    zero_ = std::make_unique<ZeroRedundancyOptimizer>(*optimizer_, model_);
  }
  set_rate();
  if (is_of_init_distributed(group_)) {
    abort_by_agent(group_);
    agent_ = &agent_channel();
  }
  if (group_->rank() == 0 && !config_.unused_keys.empty()) {
    fmt::print(stderr, "ddp::initialize: these keys change nothing here: {}\n",
               fmt::join(config_.unused_keys, ", "));
  }
}

EngineCore::~EngineCore() = default;

double EngineCore::loss_scale() const { return scaler_->scale(); }

bool EngineCore::is_gradient_accumulation_boundary() const {
  return backwards_ + 1 >= config_.gradient_accumulation_steps;
}

void EngineCore::begin_forward() {
  forward_began_ = Clock::now();
  if (!at::GradMode::is_enabled() || no_sync_ || is_gradient_accumulation_boundary()) return;
  no_sync_.emplace(model_.reducer());
}

void EngineCore::end_forward() { times_.forward += Clock::now() - forward_began_; }

at::Tensor EngineCore::backward(const at::Tensor& loss) {
  const Stopwatch watch(times_.backward);
  const at::Tensor share = loss / static_cast<double>(config_.gradient_accumulation_steps);
  (config_.fp16.enabled ? share * scaler_->scale() : share).backward();
  went_backward_ = true;
  at::Tensor counts = share.detach();
  if (agent_ != nullptr) loss_ = loss_.defined() ? loss_ + counts : counts;
  return counts;
}

void EngineCore::step() {
  if (!std::exchange(went_backward_, false)) {
    throw std::logic_error("Engine::step() needs a backward() before it");
  }
  {
    const Stopwatch watch(times_.step);
    no_sync_.reset();
    const bool updates = is_gradient_accumulation_boundary();
    ++micro_steps_;
    ++backwards_;
    if (!updates) return;
    backwards_ = 0;
    update();
  }
  if ((global_steps_ + skipped_steps_) % config_.steps_per_print == 0) print();
}

void EngineCore::update() {
  norm_.reset();
  const bool overflowed = config_.fp16.enabled && unscale();
  if (overflowed) {
    ++skipped_steps_;
  } else {
    if (config_.gradient_clipping > 0) {
      norm_ = zero_ ? zero_->clip_grad_norm_(config_.gradient_clipping)
                    : clip_grad_norm_(parameters_, config_.gradient_clipping);
    }
    set_rate();
    if (zero_) {
      zero_->step();
    } else {
      optimizer_->step();
    }
    ++global_steps_;
  }
  scaler_->update(overflowed);
  if (zero_) {
    zero_->zero_grad();
  } else {
    model_.zero_grad(/*set_to_none=*/true);
  }
  if (agent_ != nullptr) tell_agent();
}

// Reads the loss only when it reports it: on a device, reading waits for all computations.
void EngineCore::tell_agent() {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const TimePoint now = Clock::now();
  if (updated_ != TimePoint()) {
    throughput_.add(config_.train_batch_size,
                    std::chrono::duration<double>(now - updated_).count());
  }
  updated_ = now;
  const at::Tensor loss = std::exchange(loss_, {});
  if (now - told_ < kInterval) return;
  told_ = now;
  agent_->progress(global_steps_, loss.item<double>(), throughput_.recent());
}

// The averaged gradients are the same on all ranks, and so is the answer: whether one overflowed.
bool EngineCore::unscale() {
  const at::NoGradGuard no_grad;
  bool finite = true;
  for (const at::Tensor& parameter : parameters_) {
    if (!parameter.grad().defined()) continue;
    at::Tensor gradient = parameter.grad();
    gradient.mul_(1 / scaler_->scale());
    finite = finite && at::isfinite(gradient).all().item<bool>();
  }
  return !finite;
}

// Of the next update.
void EngineCore::set_rate() {
  auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (config_.scheduler) {
      groups[i].options().set_lr(learning_rate(*config_.scheduler, base_rates_[i], global_steps_));
    }
    if (i == 0) lr_ = groups[i].options().get_lr();
  }
}

void EngineCore::print() {
  if (group_->rank() == 0) {
    std::string line = fmt::format("step={}, skipped={}, lr={:g}", global_steps_ + skipped_steps_,
                                   skipped_steps_, lr_);
    if (norm_) line += fmt::format(", grad_norm={:.4g}", *norm_);
    if (config_.fp16.enabled) line += fmt::format(", loss_scale={:g}", scaler_->scale());
    if (config_.wall_clock_breakdown) {
      const auto milliseconds = [](Seconds time) { return 1000 * time.count(); };
      line += fmt::format(" | fwd: {:.2f} ms | bwd: {:.2f} ms | step: {:.2f} ms",
                          milliseconds(times_.forward), milliseconds(times_.backward),
                          milliseconds(times_.step));
    }
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
  times_ = {};
}

// Made for the first folder and whenever another one is named.
Checkpointer& EngineCore::checkpointer(const std::string& directory) {
  if (checkpointer_ && directory_ == directory) return *checkpointer_;
  checkpointer_.reset();
  auto made = std::make_unique<Checkpointer>(CheckpointOptions{.directory = directory, .keep = 0},
                                             group_, agent_ != nullptr ? agent_writer() : nullptr);
  made->add_module("model", *module_);
  if (zero_) {
    made->add_optimizer("optimizer", *zero_, *module_);
  } else {
    made->add_optimizer("optimizer", *optimizer_, *module_);
  }
  made->add_rng();
  made->add_value(
      "engine", [this] { return state(); },
      [this](const nlohmann::json& saved) { load_state(saved); });
  value_of(made->prepare());
  checkpointer_ = std::move(made);
  directory_ = directory;
  return *checkpointer_;
}

nlohmann::json EngineCore::state() const {
  if (backwards_ != 0 || went_backward_) {
    throw std::logic_error(
        "the engine is between the backwards of one update; save and commit after the step() for "
        "which is_gradient_accumulation_boundary() was true");
  }
  return {{"global_steps", global_steps_},
          {"skipped_steps", skipped_steps_},
          {"micro_steps", micro_steps_},
          {"loss_scaler", scaler_->state()},
          {"client_state", client_state_}};
}

void EngineCore::load_state(const nlohmann::json& saved) {
  scaler_->load_state(saved.at("loss_scaler"));
  global_steps_ = saved.at("global_steps").get<std::int64_t>();
  skipped_steps_ = saved.at("skipped_steps").get<std::int64_t>();
  micro_steps_ = saved.at("micro_steps").get<std::int64_t>();
  client_state_ = saved.at("client_state");
  backwards_ = 0;
  set_rate();
}

void EngineCore::save_checkpoint(const std::string& directory, const nlohmann::json& client_state) {
  (void)state();  // Refuses between backwards, before anything is changed.
  client_state_ = client_state;
  (void)value_of(checkpointer(directory).save(global_steps_));
}

std::optional<nlohmann::json> EngineCore::load_checkpoint(const std::string& directory) {
  const LoadReport report = value_of(checkpointer(directory).load_latest());
  if (report.step < 0) return std::nullopt;
  // Hyper-parameters came with the optimizer; the rate follows from the schedule.
  set_rate();
  return client_state_;
}

void EngineCore::wait_for_checkpoint() {
  if (checkpointer_) (void)value_of(checkpointer_->wait());
}

CheckpointRequests::Asked EngineCore::checkpoint_requested() {
  if (agent_ == nullptr) {
    throw std::logic_error(
        "checkpoint_requested() needs an engine with init_distributed()'s group: only that group "
        "gets requests");
  }
  if (!listening_) {
    requests_ = std::make_unique<CheckpointRequests>(*agent_);
    listening_.emplace(*requests_);
  }
  return requests_->after_step(*group_, global_steps_ + skipped_steps_);
}

}  // namespace ddp::engine
