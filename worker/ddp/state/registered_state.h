#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/ddp/state/optimizer_state.h"
#include "worker/ddp/tensors/module_state.h"

namespace torch::nn {
class Module;
}

namespace ddp {

// What is registered with a Checkpointer or an ElasticState. Everything is referenced, not owned.
// Each add function throws std::invalid_argument for a name that is empty, has a '/', or is already
// used for the same kind.
struct RegisteredState {
  struct Module {
    std::string name;
    std::function<ModuleState()> state;  // Its tensors as they are now.
  };
  struct Optimizer {
    std::string name;
    std::unique_ptr<OptimizerState> state;
  };
  struct Hook {
    std::string name;
    CommHook* hook;
  };
  struct Value {
    std::string name;
    std::function<nlohmann::json()> save;
    std::function<void(const nlohmann::json&)> load;
    bool per_rank;
    bool is_sum = false;  // A number whose sum over the ranks counts; then per_rank is set.
  };

  void add_module(std::string name, torch::nn::Module& module);
  void add_module(std::string name, std::function<ModuleState()> state);
  void add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                     const torch::nn::Module& of);
  void add_optimizer(std::string name, std::unique_ptr<OptimizerState> state);
  void add_optimizer(std::string name, ZeroRedundancyOptimizer& optimizer,
                     const torch::nn::Module& of);
  void add_rng(std::string name);
  void add_value(std::string name, std::function<nlohmann::json()> save,
                 std::function<void(const nlohmann::json&)> load, bool per_rank);
  void add_sum(std::string name, std::function<nlohmann::json()> save,
               std::function<void(const nlohmann::json&)> load);
  void add_comm_hook(std::string name, CommHook& hook);

  // Kind and name of everything registered, in order: equal on all ranks.
  std::string registration() const;

  std::vector<Module> modules;
  std::vector<Optimizer> optimizers;
  std::vector<std::string> rngs;
  std::vector<Hook> hooks;
  std::vector<Value> values;
};

}  // namespace ddp
