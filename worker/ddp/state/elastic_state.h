#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "worker/runtime/commit_pacer.h"
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

// No commit is left of which every rank's part is there: too many ranks were lost at once. All
// ranks throw it together. End the process: the agents start all workers anew.
struct StateLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The state of a training that goes on while processes come and go: Horovod Elastic's State. It is
// kept in the memory of the workers, so going back to the last commit takes as long as copying it,
// and nothing is read from disk. Made once in a process; run_elastic() (ddp/state/run_elastic.h)
// connects it to each round's group.
//
//   ElasticState state;
//   state.add_module("model", *model);
//   state.add_optimizer("optimizer", optimizer, *model);
//   state.add_rng();
//   state.add_value("position", position);          // A variable of any type that is JSON's.
//   run_elastic(state, [&](const std::shared_ptr<ProcessGroup>& group) {
//     DistributedDataParallel ddp(model, group);    // What belongs to the round.
//     while (position < end) {
//       ...                                         // A step.
//       state.commit_if_due(position);
//     }
//   });
//
// What is registered means what it means to Checkpointer, whose names and rules hold: replicated
// state is the same on all ranks after each step (rank 0's counts where it is not), per-rank state
// (RNG, per_rank values, what a hook owes) belongs to a rank's number. So a process that takes the
// place of a lost rank goes on with that rank's generator and residuals, and with the world back to
// its size the training ends with the bytes of one that lost nobody. If the size has changed, the
// state of ranks that there are no more is dropped (but sums are kept), ranks that there were not
// keep what they have, and a hook gets the mean over the ranks that there were, as from a
// checkpoint.
//
// Register in the same order on all ranks, before run_elastic(); communication hooks within it.
// What is registered is referenced and must outlive the object. commit(), restore() and sync()
// belong to the training thread; commit() and sync() are collective and throw CollectiveError.
//
// The last two commits are kept: a rank can die when some have committed a step and others have
// not, and never are they further apart, since commit() lets no rank pass before all have come. All
// go back to the newest commit that every rank's state is still there of. Every commit of a rank's
// own state lies with all ranks while it is small (up to 1 MiB over all ranks), so one survivor is
// enough; what is larger (residuals of a hook) lies with the rank itself and with one other,
// on another node if there is one.
//
// A commit costs a copy of the state and, with more than one rank, an exchange of the per-rank
// state. The buffers are made by the first two and used again. commit_if_due() commits so seldom
// that this takes at most a hundredth of the time, or as set_commit_pace() says (CommitPacer): what
// is lost with a rank is the steps since the last commit.
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
  // A number of which every rank has its own and only the sum over the ranks means anything, as of
  // losses or samples. If there are fewer ranks than there were, rank 0 gets what those had that
  // there are no more; a rank that there was not begins with 0.
  template <typename T>
  void add_sum(std::string name, T& variable) {
    static_assert(std::is_arithmetic_v<T>);
    add_sum(
        std::move(name), [&variable] { return nlohmann::json(variable); },
        [&variable](const nlohmann::json& saved) { variable = saved.get<T>(); });
  }
  void add_sum(std::string name, std::function<nlohmann::json()> save,
               std::function<void(const nlohmann::json&)> load);
  // The hook of this round, which most likely has its group: in each round anew and before the
  // first step. It gets what the last commit has under this name. It is let go of at the round's
  // end.
  void add_comm_hook(const std::string& name, std::shared_ptr<CommHook> hook);

  // The state as it is now is what training goes back to. Returns when it is safe from the loss of
  // this process. Collective. step: for reports, where training is; without it, the number of
  // commits. Throws std::runtime_error if a value cannot be saved.
  void commit(std::int64_t step);
  void commit() { commit(step() + 1); }
  // A step has been made; commits it if it is time to, which the pace decides, alike on all ranks:
  // each calls this after each of its steps. Whether it has. As commit() otherwise.
  bool commit_if_due(std::int64_t step);
  // For programs that do something before they commit: whether it is time to. Once after each step.
  bool is_commit_due();
  // Before run_elastic(); rank 0's counts. std::invalid_argument as CommitPacer's.
  void set_commit_pace(const CommitPace& pace);
  // The step of the last commit; -1 before the first.
  std::int64_t step() const;
  // What the last sync() returned.
  bool resumed() const;

  // Goes back to the last commit on this rank alone; nothing without one. For what sync() has
  // restored and the making of the round's objects has changed since.
  void restore();

  // Once at a round's beginning, by run_elastic(): all ranks go back to the newest commit there is,
  // also those that are new, which get it from the lowest rank that has it. True then. If there is
  // none, all get rank 0's replicated state and commit that as step 0: false, as long as there is
  // no other commit than this first one. Collective. Throws StateLost.
  bool sync();

  // The beginning and the end of this process's part in a round, by run_elastic(). The worker, if
  // there is one, hears of commits. leave() lets go of the group, of hooks and of the modules'
  // gradients, which may lie in the round's memory.
  void enter(std::shared_ptr<ProcessGroup> group, ElasticWorker* worker = nullptr);
  void leave();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
