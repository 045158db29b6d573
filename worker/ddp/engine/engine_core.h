#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "worker/data/throughput.h"
#include "worker/ddp/averaging/distributed_data_parallel_core.h"
#include "worker/ddp/averaging/no_sync.h"
#include "worker/engine_config/config.h"
#include "worker/runtime/checkpoint_requests.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp {
class Checkpointer;
class ZeroRedundancyOptimizer;
}  // namespace ddp

namespace ddp::engine {

class LossScaler;

// The configuration's optimizer. Throws std::invalid_argument without one, and without parameters.
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Config& config,
                                                      const std::vector<at::Tensor>& parameters);
// The options of the engine's data-parallel module.
DistributedDataParallelOptions data_parallel_options(const Config& config);

// The part of Engine that does not depend on the module's type; see there.
class EngineCore {
 public:
  // The model outlives the object. A null optimizer is made as the configuration says.
  EngineCore(std::shared_ptr<torch::nn::Module> module, DistributedDataParallelCore& model,
             const std::vector<at::Tensor>& parameters, torch::optim::Optimizer* optimizer,
             Config config, std::shared_ptr<ProcessGroup> group);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  void begin_forward();
  void end_forward();
  at::Tensor backward(const at::Tensor& loss);
  void step();
  bool is_gradient_accumulation_boundary() const;

  void save_checkpoint(const std::string& directory, const nlohmann::json& client_state);
  std::optional<nlohmann::json> load_checkpoint(const std::string& directory);
  void wait_for_checkpoint();
  CheckpointRequests::Asked checkpoint_requested();

  // Everything of the engine beside the module, the optimizer and the generator. load_state() comes
  // after the optimizer has its state. state() throws std::logic_error between the backwards of one
  // update.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& saved);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  const Config& config() const { return config_; }
  ProcessGroup& group() const { return *group_; }
  std::int64_t global_steps() const { return global_steps_; }
  std::int64_t micro_steps() const { return micro_steps_; }
  std::int64_t skipped_steps() const { return skipped_steps_; }
  double lr() const { return lr_; }
  double loss_scale() const;
  std::optional<double> global_grad_norm() const { return norm_; }

 private:
  using Seconds = std::chrono::duration<double>;

  void update();
  void tell_agent();
  bool unscale();
  void set_rate();
  void print();
  Checkpointer& checkpointer(const std::string& directory);

  // Destroyed last: a SIGTERM that nobody has handled ends the process then.
  std::unique_ptr<CheckpointRequests> requests_;
  std::optional<CheckpointRequests::Listening> listening_;
  std::shared_ptr<torch::nn::Module> module_;
  DistributedDataParallelCore& model_;
  std::vector<at::Tensor> parameters_;
  Config config_;
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<torch::optim::Optimizer> own_optimizer_;
  torch::optim::Optimizer* optimizer_;
  std::unique_ptr<ZeroRedundancyOptimizer> zero_;
  std::unique_ptr<LossScaler> scaler_;
  std::vector<double> base_rates_;  // Of the optimizer's groups.
  std::optional<NoSync> no_sync_;   // From a forward that is not the step's last until its step().
  bool went_backward_ = false;
  // Of this update. Not what micro_steps_ leaves: another number of workers has another number of
  // them for the same batch.
  std::int64_t backwards_ = 0;
  std::int64_t micro_steps_ = 0;
  std::int64_t global_steps_ = 0;
  std::int64_t skipped_steps_ = 0;
  double lr_ = 0;
  std::optional<double> norm_;
  struct {
    Seconds forward{0}, backward{0}, step{0};
  } times_;
  TimePoint forward_began_;
  ControlChannel* agent_ = nullptr;  // Of a job's engine.
  at::Tensor loss_;                  // Of the backwards of this update so far.
  Throughput throughput_;
  TimePoint updated_;
  TimePoint told_;
  std::string directory_;  // The checkpointer's.
  nlohmann::json client_state_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace ddp::engine
