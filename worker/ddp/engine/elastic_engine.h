#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

#include "worker/ddp/engine/engine.h"
#include "worker/ddp/state/elastic_state.h"
#include "worker/ddp/state/run_elastic.h"

namespace ddp {

namespace engine {

// What an engine leaves to the engine of the next round.
class ElasticEngine {
 public:
  // Registers the module, the optimizer, the generator and the engine's counters with `state`.
  ElasticEngine(ElasticState& state, torch::nn::Module& module,
                const std::vector<at::Tensor>& parameters, const Config& config);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  // Before the round's engine is made, once it is there, and when it goes.
  void before_round();
  void begin_round(EngineCore& core);
  void end_round();

 private:
  ElasticState& state_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<double> base_rates_;  // Of the optimizer's groups.
  nlohmann::json saved_;            // The counters of the last commit; null before it.
  EngineCore* core_ = nullptr;      // Of this round.
};

// The number of workers in the round that this process has a place in.
int rounds_world_size();
// run_elastic() with this process's place in its job.
void run_rounds(ElasticState& state, const TrainRound& train);

}  // namespace engine

// Trains with an engine in each round of the job until train(engine) returns, in this same process,
// as run_elastic() (ddp/state/run_elastic.h) does. When a worker is lost, an engine's call throws
// CollectiveError on all others: let it pass. The next call of train() gets the engine of the next
// round, with the state of the last commit.
//
//   ElasticState state;
//   std::int64_t batch = 0;
//   state.add_value("batch", batch);
//   run_elastic(state, net, net->parameters(), "config.json", [&](Engine<Net>& engine) {
//     while (batch < batches) {
//       engine.backward(loss_of(engine, batch++));
//       engine.step();
//       state.commit_if_due(engine.global_steps());
//     }
//   });
//
// With gradient_accumulation_steps, commit after a step() that updated: a commit between the
// backwards of one update throws std::logic_error.
//
// Registers with `state` the module "model", its optimizer "optimizer", the generator, and the
// engine's counters; register yours before. Do not call init_distributed() before this. The
// arguments are initialize()'s. Throws what initialize() and run_elastic() throw;
// std::invalid_argument for zero_optimization.stage 1, whose state is divided among the workers:
// there, call initialize(), and save checkpoints; std::logic_error if the agent was told that this
// process takes part in one round only.
template <typename M, typename Json>
void run_elastic(ElasticState& state, const std::shared_ptr<M>& module,
                 const std::vector<at::Tensor>& parameters, const Json& config,
                 const std::function<void(Engine<M>&)>& train) {
  engine::ElasticEngine rounds(state, *module, parameters,
                               engine::config_of(config, engine::rounds_world_size()));
  engine::run_rounds(state, [&](const std::shared_ptr<ProcessGroup>& group) {
    struct End {
      engine::ElasticEngine& rounds;
      ~End() { rounds.end_round(); }
    };
    rounds.before_round();
    Engine<M> made(module, {}, &rounds.optimizer(), engine::config_of(config, group->size()),
                   group);
    const End end{rounds};
    rounds.begin_round(made.core());
    train(made);
  });
}

}  // namespace ddp
