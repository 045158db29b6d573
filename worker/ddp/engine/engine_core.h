#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "worker/ddp/averaging/distributed_data_parallel_core.h"
#include "worker/engine_config/config.h"
#include "worker/runtime/checkpoint_requests.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp::engine {

// The configuration's optimizer. Throws std::invalid_argument without one, and without parameters.
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Config& config,
                                                      const std::vector<at::Tensor>& parameters);
// The options of the engine's data-parallel module.
DistributedDataParallelOptions data_parallel_options(const Config& config);

// The part of Engine that does not depend on the module's type; see there.
class EngineCore {
 public:
  // The model outlives the object. A null optimizer is made as the configuration says.
  static std::unique_ptr<EngineCore> make(std::shared_ptr<torch::nn::Module> module,
                                          DistributedDataParallelCore& model,
                                          const std::vector<at::Tensor>& parameters,
                                          torch::optim::Optimizer* optimizer, Config config,
                                          std::shared_ptr<ProcessGroup> group);
  virtual ~EngineCore() = default;

  virtual void begin_forward() = 0;
  virtual void end_forward() = 0;
  virtual at::Tensor backward(const at::Tensor& loss) = 0;
  virtual void step() = 0;
  virtual bool is_gradient_accumulation_boundary() const = 0;

  virtual void save_checkpoint(const std::string& directory,
                               const nlohmann::json& client_state) = 0;
  virtual std::optional<nlohmann::json> load_checkpoint(const std::string& directory) = 0;
  virtual void wait_for_checkpoint() = 0;
  virtual CheckpointRequests::Asked checkpoint_requested() = 0;

  // Everything of the engine beside the module, the optimizer and the generator. load_state() comes
  // after the optimizer has its state. state() throws std::logic_error between the backwards of one
  // update.
  virtual nlohmann::json state() const = 0;
  virtual void load_state(const nlohmann::json& saved) = 0;

  virtual torch::optim::Optimizer& optimizer() = 0;
  virtual const Config& config() const = 0;
  virtual ProcessGroup& group() const = 0;
  virtual std::int64_t global_steps() const = 0;
  virtual std::int64_t micro_steps() const = 0;
  virtual std::int64_t skipped_steps() const = 0;
  virtual double lr() const = 0;
  virtual double loss_scale() const = 0;
  virtual std::optional<double> global_grad_norm() const = 0;
};

}  // namespace ddp::engine
