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

// A module and its optimizer, trained as a JSON file says, like DeepSpeed's engine:
//
//   auto engine = ddp::initialize(net, net->parameters(), "config.json");
//   for (const Batch& batch : batches) {            // Of train_micro_batch_size_per_gpu samples.
//     const at::Tensor loss = criterion(engine(batch.input), batch.target);
//     engine.backward(loss);
//     engine.step();
//   }
//
// Make the three calls for each micro batch. Every gradient_accumulation_steps-th call of step()
// updates: it averages the gradients of these backwards over all ranks, clips them, makes the
// optimizer's step at the schedule's learning rate, and drops the gradients. fp16 scales losses,
// and skips updates whose gradients overflowed.
//
// worker/engine_config/config.h has the keys of the configuration and their defaults. The training
// thread makes all calls, the same ones on all ranks; they throw CollectiveError once the group has
// failed. The caller divides the samples among the ranks, and keeps its position in them in
// client_state.
//
// elastic_engine.h keeps an engine's training in memory while workers are lost and replaced.
//
// With init_distributed()'s group, ddp-run's agent is told of every update (status, metrics,
// --progress-timeout), its abort orders end collectives that would wait in vain, and it writes the
// checkpoints, even if this process dies.
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
  // The loss must be a mean over the micro batch. Returns it divided by
  // gradient_accumulation_steps.
  at::Tensor backward(const at::Tensor& loss) { return core_->backward(loss); }
  // Call it after each backward; throws std::logic_error without one.
  void step() { core_->step(); }
  // Whether the next step() updates.
  bool is_gradient_accumulation_boundary() const {
    return core_->is_gradient_accumulation_boundary();
  }

  // Saves the state after the last update, with rank 0's client_state, as the checkpoint of step
  // global_steps() in the folder. All ranks must call it. Returns when the state is copied; the
  // next save_checkpoint() and wait_for_checkpoint() report a failed write. Throws std::logic_error
  // between the backwards of one update, and std::runtime_error with the Checkpointer's message.
  void save_checkpoint(const std::string& directory, const nlohmann::json& client_state = nullptr) {
    core_->save_checkpoint(directory, client_state);
  }
  // Resumes from the newest valid checkpoint in the folder and returns its client_state; nullopt if
  // there is no checkpoint. Throws std::runtime_error with the Checkpointer's message.
  std::optional<nlohmann::json> load_checkpoint(const std::string& directory) {
    return core_->load_checkpoint(directory);
  }
  // Returns when the last checkpoint is on disk. The destructor waits, too, but does not report a
  // failure.
  void wait_for_checkpoint() { core_->wait_for_checkpoint(); }
  // Whether somebody has asked for a checkpoint since the last call: SIGUSR1 to a worker or
  // ddp-run, SLURM's warning before the time limit (kCheckpoint), or SIGTERM (kCheckpointAndStop:
  // save, wait and end; the signal then ends the process when the engine is destroyed). Collective,
  // after a step() that updated; the same answer on all ranks. The ranks communicate four times a
  // second; other calls cost nothing. The first call starts to catch these signals. Throws
  // std::logic_error with another group than init_distributed()'s.
  CheckpointRequests::Asked checkpoint_requested() { return core_->checkpoint_requested(); }

  M& module() { return model_->module(); }
  DistributedDataParallel<M>& model() { return *model_; }
  torch::optim::Optimizer& optimizer() { return core_->optimizer(); }
  ProcessGroup& group() { return core_->group(); }
  const engine::Config& config() const { return core_->config(); }
  engine::EngineCore& core() { return *core_; }
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
// With your own optimizer, which must outlive the engine; the configuration's is ignored.
template <typename M, typename Json>
Engine<M> initialize(const std::shared_ptr<M>& module, torch::optim::Optimizer& optimizer,
                     const Json& config, std::shared_ptr<ProcessGroup> group = nullptr) {
  if (!group) group = init_distributed();
  engine::Config parsed = engine::config_of(config, group->size());
  return Engine<M>(module, {}, &optimizer, std::move(parsed), std::move(group));
}

}  // namespace ddp
