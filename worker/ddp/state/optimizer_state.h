#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "worker/ddp/state/state_dict.h"

namespace torch::optim {
class Optimizer;
}

namespace ddp {

class ZeroRedundancyOptimizer;

// What an optimizer knows: hyper-parameters of every group and, by parameter name, its state.
struct OptimizerSnapshot {
  nlohmann::json description;  // FORMAT.md, "An optimizer is".
  std::vector<StateTensor> tensors;
};

// Saves and restores one optimizer. LibTorch's own archive of an optimizer loses the learning rate
// on loading and keys state by position; this one is by name and complete.
class OptimizerState {
 public:
  virtual ~OptimizerState() = default;

  // `prefix` goes before the tensors' names.
  virtual OptimizerSnapshot snapshot(const std::string& prefix) const = 0;

  // Reads the state and returns the change that puts it into the optimizer. kMismatch, naming what
  // differs, if the optimizer is of another type, has other groups, or its parameters have other
  // shapes. Tensors that the optimizer has already get new values in place; memory for others is
  // allocated now.
  virtual Result<Commit> stage(const std::string& prefix, const nlohmann::json& description,
                               TensorSource& source) = 0;
};

// Both arguments must outlive the result. Throws std::invalid_argument, naming `name` and the
// reason, unless the optimizer is an SGD, Adam, AdamW, Adagrad or RMSprop whose every parameter is
// one of the module's.
std::unique_ptr<OptimizerState> make_optimizer_state(const std::string& name,
                                                     torch::optim::Optimizer& optimizer,
                                                     const torch::nn::Module& module);
// The same for one that is divided among ranks. Its snapshot is that of the whole optimizer, the
// same on all ranks, with this rank's parts of the tensors.
std::unique_ptr<OptimizerState> make_optimizer_state(const std::string& name,
                                                     ZeroRedundancyOptimizer& optimizer,
                                                     const torch::nn::Module& module);

}  // namespace ddp
