#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "worker/runtime/commit_pace.h"
#include "worker/runtime/elastic_worker.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp {

class CommHook;
class OptimizerState;
struct ModuleState;

// Too many ranks were lost at once: no commit is left that has every rank's part. All ranks throw
// it together. End the process then; the agents start new workers.
struct StateLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The state of a training that continues while processes come and go, like Horovod Elastic's State.
// It is kept in the memory of the workers, so stepping back to the last commit takes as long as
// copying it, and nothing is read from disk. Make it once per process; run_elastic()
// (ddp/state/run_elastic.h) connects it to each round's group.
//
//   ElasticState state;
//   state.add_module("model", *model);
//   state.add_optimizer("optimizer", optimizer, *model);
//   state.add_rng();
//   state.add_value("position", position);          // A variable of any type that JSON can hold.
//   run_elastic(state, [&](const std::shared_ptr<ProcessGroup>& group) {
//     DistributedDataParallel ddp(model, group);    // What belongs to the round.
//     while (position < end) {
//       ...                                         // A step.
//       state.commit_if_due(position);
//     }
//   });
//
// Registration follows Checkpointer's names and rules. Replicated state is the same on all ranks
// after each step (if it differs, rank 0's counts). Per-rank state (RNG, per_rank values, a hook's
// residuals) belongs to a rank's number. So a process that replaces a lost rank continues with that
// rank's generator and residuals, and if the world has its old size again, the training ends with
// the bytes of one that lost no rank. If the size has changed, the state of ranks that no longer
// exist is dropped (but sums are kept), new ranks keep what they have, and a hook gets the mean
// over the former ranks, as from a checkpoint.
//
// Register in the same order on all ranks, before run_elastic(); communication hooks within it.
// What is registered is referenced and must outlive the object. commit(), restore() and sync()
// belong to the training thread; commit() and sync() are collective and throw CollectiveError.
//
// The last two commits are kept, because a rank can die when some ranks have committed a step and
// others have not. Ranks are never further apart: commit() lets no rank pass before all have come.
// All ranks step back to the newest commit for which every rank's part still exists. While the
// ranks' own state is small (up to 1 MiB over all ranks), every rank keeps all of it, so one
// survivor is enough. Larger state (residuals of a hook) is kept by the rank itself and by one
// other, on another node if there is one.
//
// A commit costs a copy of the state and, with more than one rank, an exchange of the per-rank
// state. The first two commits make the buffers; later ones reuse them. commit_if_due() commits so
// rarely that this takes at most a hundredth of the time, or as set_commit_pace() says. If a rank
// is lost, the steps since the last commit are lost.
class ElasticState {
 public:
  ElasticState();
  ~ElasticState();
  ElasticState(const ElasticState&) = delete;
  ElasticState& operator=(const ElasticState&) = delete;

  // As Checkpointer's. std::invalid_argument for names and optimizers that it would refuse.
  void add_module(std::string name, torch::nn::Module& module);
  void add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                     const torch::nn::Module& of);
  // For what is no torch::nn::Module and no torch::optim::Optimizer: state() is called whenever the
  // module's tensors are needed.
  void add_module(std::string name, std::function<ModuleState()> state);
  void add_optimizer(std::string name, std::unique_ptr<OptimizerState> state);
  // As Checkpointer's: also those of devices.
  void add_rng(std::string name = "cpu");
  void add_value(std::string name, std::function<nlohmann::json()> save,
                 std::function<void(const nlohmann::json&)> load, bool per_rank = false);
  // A variable.
  template <typename T>
  void add_value(std::string name, T& variable, bool per_rank = false) {
    add_value(
        std::move(name), [&variable] { return nlohmann::json(variable); },
        [&variable](const nlohmann::json& saved) { variable = saved.get<T>(); }, per_rank);
  }
  // A number of which every rank has its own and only the sum over the ranks matters, such as a
  // count of samples. If there are fewer ranks than before, rank 0 gets the numbers of the ranks
  // that no longer exist; a new rank begins with 0.
  template <typename T>
  void add_sum(std::string name, T& variable) {
    static_assert(std::is_arithmetic_v<T>);
    add_sum(
        std::move(name), [&variable] { return nlohmann::json(variable); },
        [&variable](const nlohmann::json& saved) { variable = saved.get<T>(); });
  }
  void add_sum(std::string name, std::function<nlohmann::json()> save,
               std::function<void(const nlohmann::json&)> load);
  // This round's hook, which usually holds the round's group. Call it again in each round, before
  // the first step. The hook gets the last commit's state under this name, and is released at the
  // end of the round.
  void add_comm_hook(const std::string& name, std::shared_ptr<CommHook> hook);

  // Commits the current state: training steps back to it after a failure. Returns when it is safe
  // from the loss of this process. Collective. `step` is for reports; without it, the number of
  // commits counts. Throws std::runtime_error if a value cannot be saved.
  void commit(std::int64_t step);
  void commit() { commit(step() + 1); }
  // Call it on all ranks after each step. Commits if the pace says that a commit is due, which is
  // the same on all ranks. Returns whether it committed. Otherwise like commit().
  bool commit_if_due(std::int64_t step);
  // For programs that do something before they commit: whether a commit is due. Call it once after
  // each step.
  bool is_commit_due();
  // Call it before run_elastic(); rank 0's pace counts. Throws std::invalid_argument for an invalid
  // pace.
  void set_commit_pace(const CommitPace& pace);
  // The step of the last commit; -1 before the first.
  std::int64_t step() const;
  // What the last sync() returned.
  bool resumed() const;

  // Steps back to the last commit on this rank alone; does nothing without a commit. For state that
  // sync() restored and that making the round's objects has changed since.
  void restore();

  // run_elastic() calls it once at the beginning of a round. All ranks step back to the newest
  // commit; new ranks get it from the lowest rank that has it. Returns true then. If there is no
  // commit, all ranks get rank 0's replicated state and commit it as step 0. Returns false as long
  // as there is no other commit than this first one. Collective. Throws StateLost.
  bool sync();

  // run_elastic() calls them at the beginning and the end of this process's part in a round. The
  // worker, if there is one, is told of commits. leave() releases the group, the hooks and the
  // modules' gradients, which may be in the round's memory.
  void enter(std::shared_ptr<ProcessGroup> group, ElasticWorker* worker = nullptr);
  void leave();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
