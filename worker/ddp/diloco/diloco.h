#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>
#include <torch/optim/optimizer.h>

#include "worker/ddp/averaging/comm_hook.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddp {

class LocalReplica;

struct DiLoCoOptions {
  std::int64_t sync_every = 100;  // H: inner steps between two communications of a parameter.
  // The parameters, in the order of the module, are cut into this many fragments of about equal
  // size. Each is communicated every sync_every steps, at staggered steps, which lowers the peak
  // load on the link. Must divide sync_every.
  int fragments = 1;
  // tau: how many steps training continues while a fragment is in flight; 0: training waits. Must
  // be below sync_every / fragments.
  std::int64_t fragment_sync_delay = 0;
  // The share of a rank's own values that it keeps when the values of the outer step come: 0 is
  // none, 1 is all. Useful with a delay.
  double fragment_update_alpha = 0;
  // The type in which pseudo-gradients travel. Default: the parameters' type.
  std::optional<at::ScalarType> transfer_dtype = std::nullopt;
};

using OuterOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// The paper's outer optimizer: SGD with Nesterov momentum 0.9 and learning rate 0.7.
std::unique_ptr<torch::optim::Optimizer> diloco_outer_optimizer(std::vector<at::Tensor> parameters);

// Trains replicas independently with an inner optimizer, and synchronizes them every H steps with
// an outer one: DiLoCo (arXiv 2311.08105), and with fragments and a delay streaming DiLoCo (arXiv
// 2501.18512). It takes DistributedDataParallel's place: no gradient is communicated.
//
//   torch::optim::AdamW inner(model->parameters(), options);
//   ddp::DiLoCo diloco(*model, inner, {.sync_every = 100});
//   diloco.enter(group);
//   for (...) {
//     diloco.zero_grad();
//     loss(model->forward(batch)).backward();    // Each rank's own.
//     diloco.step();
//   }
//   diloco.synchronize();
//
// At a communication each rank's pseudo-gradient is the common value of a parameter minus its own;
// their average is the gradient with which the outer optimizer steps the common values; each rank's
// own value becomes alpha * own + (1 - alpha) * common. With an outer SGD of learning rate 1
// without momentum it is local SGD: parameters are averaged every H steps.
//
// The module and the inner optimizer must outlive the object. All parameters are on the CPU and
// have one floating-point type. Buffers are not communicated. Used by the training thread. enter(),
// step() and synchronize() are collective and throw CollectiveError once the group has failed; then
// call leave(), best from a destructor.
//
// To resume exactly, from a Checkpointer or in the next round of run_elastic(), from an
// ElasticState: add_to() registers what the ranks have in common, and own_state() is a hook that
// holds each rank's own values. If the number of ranks has changed, all ranks continue with the
// mean of the former ranks' own values.
//
//   diloco.add_to(state);                                   // Before run_elastic().
//   run_elastic(state, [&](const auto& group) {
//     const Leave leave{diloco};                            // ~Leave() { diloco.leave(); }
//     diloco.enter(group);
//     state.add_comm_hook("diloco", diloco.own_state());
//     state.restore();
//     diloco.resume();
//     ... step(), state.commit_if_due(diloco.steps()) ...
//   });
class DiLoCo {
 public:
  // Throws std::invalid_argument naming the option or parameter that does not fit.
  DiLoCo(torch::nn::Module& module, torch::optim::Optimizer& inner,
         const DiLoCoOptions& options = {}, const OuterOptimizer& outer = diloco_outer_optimizer);
  ~DiLoCo();
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // Before the first step, gives all ranks rank 0's parameters, as their own and as the common
  // values. Later it leaves both unchanged. Collective.
  void enter(std::shared_ptr<ProcessGroup> group);
  // Releases the group. Drops what is in flight.
  void leave();

  void zero_grad();
  // The inner optimizer's step, then the communication that is due.
  void step();
  // Communicates all fragments now, without delay; afterwards all ranks have the common values.
  // Call it at the end of a training.
  void synchronize();

  std::int64_t steps() const { return steps_; }
  // How many bytes this rank has contributed to averages.
  std::uint64_t communicated_bytes() const { return communicated_bytes_; }
  torch::optim::Optimizer& inner() { return inner_; }
  torch::optim::Optimizer& outer() { return *outer_; }
  // The common values: parameters under their names in the module, with '/' in place of dots.
  const torch::nn::Module& common() const { return *common_; }

  // Module, common values, both optimizers and how far it is, under names that begin with
  // `name`. State: Checkpointer or ElasticState.
  template <typename State>
  void add_to(State& state, const std::string& name = "diloco") {
    state.add_module(name, module_);
    state.add_optimizer(name, inner_, module_);
    state.add_module(name + "-common", *common_);
    state.add_optimizer(name + "-outer", *outer_, *common_);
    state.add_value(
        name + "-steps", [this] { return progress(); },
        [this](const nlohmann::json& saved) { set_progress(saved); });
  }
  // Each rank's own values, and averages that have come but are not due yet. Saving waits for what
  // is in flight.
  std::shared_ptr<CommHook> own_state();
  // Applies what own_state() has restored. Call it after modules and optimizers are restored.
  void resume();

 private:
  nlohmann::json progress() const;
  void set_progress(const nlohmann::json& saved);
  class OwnState;
  struct Fragment {
    std::size_t begin = 0;  // Of own_ and values_.
    std::size_t end = 0;
    at::Tensor flat = {};  // Its pseudo-gradients, on their way or averaged.
    std::vector<at::Tensor> slots = {};
    WorkPtr work = nullptr;
    bool is_under_way = false;
  };

  void cut_into_fragments();
  std::int64_t phase(std::size_t fragment) const;
  void begin(Fragment& fragment);
  void arrive(Fragment& fragment);
  void finish(Fragment& fragment, double alpha);
  void communicate_if_due();
  void allocate(Fragment& fragment);

  torch::nn::Module& module_;
  torch::optim::Optimizer& inner_;
  DiLoCoOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> own_;
  std::vector<at::Tensor> values_;  // The common ones.
  std::shared_ptr<torch::nn::Module> common_;
  std::unique_ptr<torch::optim::Optimizer> outer_;
  std::vector<Fragment> fragments_;
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<LocalReplica> replica_;
  std::map<std::string, at::Tensor> pending_;  // As own_state() was given it.
  std::int64_t steps_ = 0;
  std::int64_t synchronized_at_ = 0;
  std::uint64_t communicated_bytes_ = 0;
};

}  // namespace ddp
