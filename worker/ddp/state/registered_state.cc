#include "worker/ddp/state/registered_state.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace ddp {
namespace {

template <typename Items>
void check_name(const char* kind, const std::string& name, const Items& items) {
  if (name.empty() || name.find('/') != std::string::npos) {
    throw std::invalid_argument(
        fmt::format("\"{}\" cannot name a {}: it must not be empty nor contain '/'", name, kind));
  }
  for (const auto& item : items) {
    if (item.name == name) {
      throw std::invalid_argument(fmt::format("the {} \"{}\" is registered already", kind, name));
    }
  }
}

}  // namespace

void RegisteredState::add_module(std::string name, torch::nn::Module& module) {
  add_module(std::move(name), [&module] { return state_of(module); });
}

void RegisteredState::add_module(std::string name, std::function<ModuleState()> state) {
  check_name("module", name, modules);
  modules.push_back({std::move(name), std::move(state)});
}

void RegisteredState::add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                                    const torch::nn::Module& of) {
  auto state = make_optimizer_state(name, optimizer, of);
  add_optimizer(std::move(name), std::move(state));
}

void RegisteredState::add_optimizer(std::string name, ZeroRedundancyOptimizer& optimizer,
                                    const torch::nn::Module& of) {
  auto state = make_optimizer_state(name, optimizer, of);
  add_optimizer(std::move(name), std::move(state));
}

void RegisteredState::add_optimizer(std::string name, std::unique_ptr<OptimizerState> state) {
  check_name("optimizer", name, optimizers);
  optimizers.push_back({std::move(name), std::move(state)});
}

void RegisteredState::add_rng(std::string name) {
  if (!rngs.empty()) {
    throw std::invalid_argument("the default generator is registered already");
  }
  check_name("generator", name, std::vector<Module>());
  rngs.push_back(std::move(name));
}

void RegisteredState::add_value(std::string name, std::function<nlohmann::json()> save,
                                std::function<void(const nlohmann::json&)> load, bool per_rank) {
  check_name("value", name, values);
  values.push_back({std::move(name), std::move(save), std::move(load), per_rank});
}

void RegisteredState::add_sum(std::string name, std::function<nlohmann::json()> save,
                              std::function<void(const nlohmann::json&)> load) {
  add_value(std::move(name), std::move(save), std::move(load), true);
  values.back().is_sum = true;
}

void RegisteredState::add_comm_hook(std::string name, CommHook& hook) {
  check_name("communication hook", name, hooks);
  hooks.push_back({std::move(name), &hook});
}

std::string RegisteredState::registration() const {
  std::string text;
  for (const auto& module : modules) text += fmt::format("module {}\n", module.name);
  for (const auto& optimizer : optimizers) text += fmt::format("optimizer {}\n", optimizer.name);
  for (const auto& name : rngs) text += fmt::format("generator {}\n", name);
  for (const auto& item : hooks) {
    text += fmt::format("communication hook {} ({})\n", item.name, item.hook->name());
  }
  for (const auto& value : values) {
    const char* kind = value.is_sum ? " to be added" : value.per_rank ? " per rank" : "";
    text += fmt::format("value {}{}\n", value.name, kind);
  }
  return text;
}

}  // namespace ddp
