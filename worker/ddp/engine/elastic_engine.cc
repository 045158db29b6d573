#include "worker/ddp/engine/elastic_engine.h"

#include <stdexcept>

#include "worker/ddp/engine/agent_link.h"

namespace ddp::engine {

ElasticEngine::ElasticEngine(ElasticState& state, torch::nn::Module& module,
                             const std::vector<at::Tensor>& parameters, const Config& config)
    : state_(state) {
  if (config.zero_stage == 1) {
    throw std::invalid_argument(
        "zero_optimization.stage 1 divides the optimizer's state among the workers, so none can go "
        "on without a lost one: take stage 0, or call initialize() and save checkpoints");
  }
  optimizer_ = optimizer_of(config, parameters);
  for (const auto& of : optimizer_->param_groups()) base_rates_.push_back(of.options().get_lr());
  state_.add_module("model", module);
  state_.add_optimizer("optimizer", *optimizer_, module);
  state_.add_rng();
  state_.add_value(
      "engine", [this] { return core_ == nullptr ? saved_ : core_->state(); },
      [this](const nlohmann::json& saved) { saved_ = saved; });
}

// An engine takes the rates that it finds as those that its schedule begins with.
void ElasticEngine::before_round() {
  auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(base_rates_[i]);
}

void ElasticEngine::begin_round(EngineCore& core) {
  if (state_.resumed()) state_.restore();
  if (!saved_.is_null()) core.load_state(saved_);
  core_ = &core;
}

void ElasticEngine::end_round() { core_ = nullptr; }

int rounds_world_size() {
  ElasticWorker* worker = elastic_worker();
  if (worker == nullptr) return init_distributed()->size();
  worker->wait_for_place();
  return static_cast<int>(worker->variable_or("WORLD_SIZE", 1));
}

void run_rounds(ElasticState& state, const TrainRound& train) {
  const TrainRound in_distributed = [&](const std::shared_ptr<ProcessGroup>&) {
    train(init_distributed());
  };
  if (ElasticWorker* worker = elastic_worker()) return run_elastic(*worker, state, in_distributed);
  if (agent_channel().connected()) {
    throw std::logic_error(
        "run_elastic() comes too late: this process has called init_distributed() or made an "
        "engine, which tells ddp-run that it takes part in one round only");
  }
  run_elastic(state, in_distributed);
}

}  // namespace ddp::engine
