#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "worker/ddp/averaging/distributed_data_parallel.h"
#include "worker/ddp/engine/engine_core.h"
#include "worker/ddp/engine/init_distributed.h"
#include "worker/engine_config/config.h"

namespace ddp {

namespace engine {

template <typename Json>
Config config_of(const Json& config, int world_size) {
  if constexpr (std::is_same_v<Json, nlohmann::json>) {
    return parse_config(config, world_size);
  } else {
    return read_config(config, world_size);
  }
}

}  // namespace engine

// A module, its optimizer and all that a JSON file says about training them, as DeepSpeed's engine:
//
//   auto engine = ddp::initialize(net, net->parameters(), "config.json");
//   for (const Batch& batch : batches) {            // Of train_micro_batch_size_per_gpu samples.
//     const at::Tensor loss = criterion(engine(batch.input), batch.target);
//     engine.backward(loss);
//     engine.step();
//   }
//
// The three calls are made for each micro batch. Of every gradient_accumulation_steps calls of
// step() one updates: the mean of the gradients of these backwards over all ranks, clipped, by the
// optimizer at the rate of the schedule; then gradients are dropped. fp16 scales losses, and leaves
// out updates whose gradients overflowed.
//
// The keys of the configuration and their defaults stand in worker/engine_config/config.h. All
// calls are made by the training thread, alike on all ranks; they throw CollectiveError once the
// group has failed. Samples are the caller's to divide among the ranks, and their place the
// caller's to keep in client_state.
//
// With init_distributed()'s group the agent of ddp-run hears of every update (status, metrics,
// --progress-timeout), its orders end collectives that would wait in vain, and checkpoints are
// written by it, also if this process dies.
template <typename M>
class Engine {
 public:
  Engine(std::shared_ptr<M> module, const std::vector<at::Tensor>& parameters,
         torch::optim::Optimizer* optimizer, engine::Config config,
         std::shared_ptr<ProcessGroup> group)
      : model_(std::make_unique<DistributedDataParallel<M>>(module, group,
                                                            engine::data_parallel_options(config))),
        core_(std::make_unique<engine::EngineCore>(module, model_->core(), parameters, optimizer,
                                                   std::move(config), std::move(group))) {}

  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    core_->begin_forward();
    auto output = model_->forward(std::forward<Arguments>(arguments)...);
    core_->end_forward();
    return output;
  }
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }
  // A mean over the micro batch. Gives the loss as it counts, divided by
  // gradient_accumulation_steps.
  at::Tensor backward(const at::Tensor& loss) { return core_->backward(loss); }
  // After each backward; std::logic_error without one.
  void step() { core_->step(); }
  // Whether the next step() updates.
  bool is_gradient_accumulation_boundary() const {
    return core_->is_gradient_accumulation_boundary();
  }

  // The state after the last update, with client_state (rank 0's), as checkpoint of
  // global_steps() in the folder: all ranks call it. Returns when the state is copied; how the
  // writing ended is told by the next one and by wait_for_checkpoint(). std::logic_error between
  // the backwards of one update; std::runtime_error with the checkpointer's words.
  void save_checkpoint(const std::string& directory, const nlohmann::json& client_state = nullptr) {
    core_->save_checkpoint(directory, client_state);
  }
  // Goes on from the newest valid checkpoint in the folder and gives its client_state; nothing if
  // there is none. std::runtime_error with the checkpointer's words.
  std::optional<nlohmann::json> load_checkpoint(const std::string& directory) {
    return core_->load_checkpoint(directory);
  }
  // Returns when the last checkpoint is on the disk. The destructor waits, too, but tells nobody.
  void wait_for_checkpoint() { core_->wait_for_checkpoint(); }
  // Whether somebody has asked for a checkpoint since the last call: SIGUSR1 to a worker or
  // ddp-run, SLURM's warning before the time limit (kCheckpoint), or SIGTERM (kCheckpointAndStop:
  // save, wait and end; the engine's end is the process's then, by that signal). Collective, after
  // a step() that updated; the same answer on all ranks. Ranks talk four times a second, other
  // calls cost nothing. From the first call on these signals are caught. std::logic_error with
  // another group than init_distributed()'s.
  CheckpointRequests::Asked checkpoint_requested() { return core_->checkpoint_requested(); }

  M& module() { return model_->module(); }
  DistributedDataParallel<M>& model() { return *model_; }
  torch::optim::Optimizer& optimizer() { return core_->optimizer(); }
  ProcessGroup& group() { return core_->group(); }
  const engine::Config& config() const { return core_->config(); }
  void train(bool on = true) { module().train(on); }
  void eval() { module().eval(); }

  std::int64_t global_steps() const { return core_->global_steps(); }    // Updates.
  std::int64_t micro_steps() const { return core_->micro_steps(); }      // Calls of step().
  std::int64_t skipped_steps() const { return core_->skipped_steps(); }  // Overflows.
  double lr() const { return core_->lr(); }                              // Of the last update.
  double loss_scale() const { return core_->loss_scale(); }
  // Before clipping, of the last update; nothing without gradient_clipping.
  std::optional<double> global_grad_norm() const { return core_->global_grad_norm(); }

 private:
  std::unique_ptr<DistributedDataParallel<M>> model_;
  std::unique_ptr<engine::EngineCore> core_;
};

// Collective. `config` is the path of a JSON file or an nlohmann::json. std::invalid_argument for a
// configuration that is wrong (config.h) or has no optimizer, and for what DistributedDataParallel
// and ZeroRedundancyOptimizer refuse. A null group is init_distributed()'s.
template <typename M, typename Json>
Engine<M> initialize(const std::shared_ptr<M>& module, const std::vector<at::Tensor>& parameters,
                     const Json& config, std::shared_ptr<ProcessGroup> group = nullptr) {
  if (!group) group = init_distributed();
  engine::Config parsed = engine::config_of(config, group->size());
  return Engine<M>(module, parameters, nullptr, std::move(parsed), std::move(group));
}
// With an optimizer of one's own, which outlives the engine; that of the configuration is left out.
template <typename M, typename Json>
Engine<M> initialize(const std::shared_ptr<M>& module, torch::optim::Optimizer& optimizer,
                     const Json& config, std::shared_ptr<ProcessGroup> group = nullptr) {
  if (!group) group = init_distributed();
  engine::Config parsed = engine::config_of(config, group->size());
  return Engine<M>(module, {}, &optimizer, std::move(parsed), std::move(group));
}

}  // namespace ddp
