#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "worker/ddp/state/checkpoint_writer.h"
#include "worker/ddp/state/load_options.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp {

class ZeroRedundancyOptimizer;

namespace checkpoint {
class FileSystem;
}
class CommHook;
class OptimizerState;
struct ModuleState;

// The same on all ranks, except snapshot_limit.
struct CheckpointOptions {
  std::string directory;  // Shared by all nodes; created with its parents if missing.
  int keep = 3;  // How many checkpoints stay; 0 keeps all. The last valid one is never removed.
  std::int64_t keep_every = 0;  // Checkpoints of steps divisible by it stay for ever; 0: none.
  bool asynchronous = true;     // false: save() returns when the checkpoint is durable.
  std::uint64_t bytes_per_second = 0;  // Limit for each rank's writing; 0: no limit.
  // How long a save waits while one system call does not return: a disk may stall for a minute, and
  // a network file system for ever. Then the save has failed. (With asynchronous false, the step
  // waits for the disk as long as it takes.)
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // How many bytes this rank may use for the copy of its share; 0: whatever the machine has left.
  std::uint64_t snapshot_limit = 0;
  // Parameters and optimizers are the same on all ranks after a step, so each rank writes a share.
  // false: they are not (post-local SGD, a hook that does not average): rank 0's are written.
  bool ranks_are_equal = true;
  // How long prepare() waits for an earlier incarnation of this job that is still writing.
  std::chrono::milliseconds lock_wait = std::chrono::minutes(10);
};

// The outcome of a save; the same on all ranks.
struct SaveReport {
  enum class State {
    kNone,     // There was none.
    kWriting,  // The state is copied; wait() or the next save() reports the outcome.
    kDurable,  // It is on the disk, complete, and survives a power cut.
  };
  State state = State::kNone;
  std::int64_t step = -1;
  std::string path;  // Of the checkpoint; kDurable only.
  // Why the save was not made as asked for, such as "training waited for the disk, since there is
  // no memory for a copy of the state"; else empty.
  std::string note;
};

// Who is told how long each checkpoint takes. On rank 0 alone, by the training thread, within the
// calls of the Checkpointer; so neither may be collective. One that throws is a warning.
struct CheckpointTimes {
  // For so many seconds save() has held the training up. Told before anybody can load the
  // checkpoint: whatever is killed and when, either it was told or there is no checkpoint.
  std::function<void(std::int64_t step, double seconds)> held;
  // The checkpoint is on the disk, and writing it took so many seconds. Told by a later save(), or
  // by wait(). A process that is killed before has not told it: see tell_newest().
  std::function<void(std::int64_t step, double seconds)> written;
};

// What load_latest found; the same on all ranks.
struct LoadReport {
  std::int64_t step = -1;   // -1: there is nothing to load.
  std::int64_t epoch = -1;  // As passed to save(); -1 if none was.
  int world_size = 0;       // Of the run that saved it.
  std::string path;
  // One line for each newer checkpoint passed over: which and why.
  std::vector<std::string> skipped;
  // What was left out by rule, such as per-rank state after a change of world size.
  std::vector<std::string> notes;
};

// Saves and restores everything that exact resume needs, together with the other ranks of a process
// group.
//
//   Checkpointer checkpointer({.directory = "run1", .keep = 3}, group);
//   checkpointer.add_module("model", *model);              // Alike on all ranks.
//   checkpointer.add_optimizer("optimizer", optimizer, *model);
//   checkpointer.add_rng();
//   checkpointer.add_value("position", save, load);
//   checkpointer.prepare();
//   auto resumed = checkpointer.load_latest();
//   for (...) {
//     ...                                                  // A step.
//     if (step % 100 == 0) checkpointer.save(step);        // Costs a copy of this rank's share.
//   }
//   checkpointer.wait();                                   // The last one is on the disk.
//
// Register every piece of state once, in the same order on all ranks, then call prepare,
// load_latest, save and wait. Every call is collective and belongs to the training thread. What is
// registered is referenced, not owned, and must outlive the object.
//
// Saving. save() copies the state into memory and returns; training waits for nothing else. The
// files are written in the background, by the agent where there is one (then the checkpoint is
// finished even if every worker of the node dies meanwhile), else by a thread (CheckpointWriter).
// The ranks meet in the folder only: no collective runs in the background. The next save() or
// wait() reports the outcome. Call wait() before the program ends, or a last failure goes
// unreported. At most one save is in progress: the next save() waits for it.
//
// Who writes what. Parameters and optimizer tensors are the same on all ranks and are divided among
// them, so each of N ranks copies and writes an N-th. Rank 0 writes buffers (its own count),
// values, and the replicated state of communication hooks. Each rank writes and reads its own
// per-rank state (RNG, values with per_rank, a hook's per-rank state). The folder's format is
// worker/checkpoint/FORMAT.md.
//
// Memory: one copy of the rank's share, made at the first save and kept. Where there is not enough
// (or snapshot_limit forbids it) on any rank, that save is written while training waits, and its
// report says so.
//
// One job per folder: rank 0's process holds the folder's lock from prepare() on. A save that is
// still being written holds it, too, so a restarted rank 0 sees how its predecessor's last save
// ended. A crash leaves no lock behind.
//
// If training continues from round to round in one process (run_elastic), pass the same
// CheckpointWriter to every round's Checkpointer. Checkpointer makes no copies in the memory of
// other nodes. They are not needed: replicated state is on every rank, and ElasticState keeps each
// rank's own state on another node, too. So training survives a lost node without reading a
// checkpoint while one rank is left.
//
// Expected failures are a Result, the same on all ranks, and leave the model, the optimizer and
// existing checkpoints unchanged. CollectiveError from the process group passes through.
class Checkpointer {
 public:
  // Throws std::invalid_argument on an empty directory or a negative keep.
  // writer: null makes one of its own, without an agent.
  Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
               std::shared_ptr<CheckpointWriter> writer = nullptr);
  // With another file system, which outlives the object and the writer: for tests.
  Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
               checkpoint::FileSystem& files, std::shared_ptr<CheckpointWriter> writer = nullptr);
  // A save in progress continues; if this object made its own writer, the destructor waits for it.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Names identify state in the checkpoint: not empty, no '/', unique among their kind; else
  // std::invalid_argument.

  // Parameters and buffers of the module.
  void add_module(std::string name, torch::nn::Module& module);

  // State by parameter name, and the hyper-parameters of every group. `of` holds all parameters of
  // the optimizer. Throws std::invalid_argument naming the optimizer's type if it is none of SGD,
  // Adam, AdamW, Adagrad and RMSprop, or the parameter that `of` does not have.
  void add_optimizer(std::string name, torch::optim::Optimizer& optimizer,
                     const torch::nn::Module& of);
  // Writes the same checkpoint as for the optimizer alone, so each can resume from the other's, on
  // any number of ranks. A save costs an exchange in which every rank sends its parts and gets
  // those of the tensors that it writes. Throws std::invalid_argument without ranks_are_equal.
  void add_optimizer(std::string name, ZeroRedundancyOptimizer& optimizer,
                     const torch::nn::Module& of);

  // For what is no torch::nn::Module and no torch::optim::Optimizer: state() is called whenever the
  // module's tensors are needed.
  void add_module(std::string name, std::function<ModuleState()> state);
  void add_optimizer(std::string name, std::unique_ptr<OptimizerState> state);

  // The default generators of the CPU and of the devices that the modules are on, per rank. Loads
  // what has none for a device, too; that one keeps its state then.
  void add_rng(std::string name = "cpu");

  // Anything else. save is called on rank 0 (per_rank: on every rank) inside save(). load is called
  // on every rank inside load_latest(), before modules and optimizers get their values. Numbers
  // come back bit for bit, also NaN and infinities. Either may throw: the call then fails with the
  // exception's text, and values that were loaded before are restored by load() with what save()
  // returned earlier.
  void add_value(std::string name, std::function<nlohmann::json()> save,
                 std::function<void(const nlohmann::json&)> load, bool per_rank = false);

  // State of a communication hook (CommHook::state), for exact resume: for instance PowerSGD's
  // residuals of each rank. If the number of ranks has changed, every rank gets the mean of the
  // per-rank state. A checkpoint that has no hook or another kind of hook under this name is
  // kMismatch; state that the hook refuses is kInvalidArgument with the hook's message.
  void add_comm_hook(std::string name, CommHook& hook);

  // Makes the folder, takes its lock, removes what crashed runs left in it, and proves that every
  // rank can write there and sees what rank 0 wrote. kIo with the path and the system's reason if
  // not; kExists, naming the holder, while another job uses the folder (after the first round, only
  // if it still does after half a minute); kTimeout if an earlier incarnation of this job is still
  // writing after lock_wait.
  Result<void> prepare();

  // Saves the state as it is now. A checkpoint of the same step is replaced atomically. All ranks
  // agree on the report.
  //
  // An error that names an earlier step reports the failure of that save; this step is being saved
  // nevertheless. With any other error nothing is saved. Training can continue after both.
  Result<SaveReport> save(std::int64_t step, std::int64_t epoch = -1);

  // Returns when the last save is durable or has failed; then with its error, unless save() has
  // reported it. kNone if this object has saved nothing.
  Result<SaveReport> wait();

  // Waits for this object's save in progress, then restores the newest checkpoint whose checksums
  // all hold and that every rank can read. No checkpoint at all, or none valid, is success with
  // step -1. kMismatch, naming the tensor, if the checkpoint belongs to another model; kIo if the
  // folder itself cannot be read. Nothing is changed before all ranks have read and checked all
  // that they need. Modules need no second copy of their tensors, because the files are mapped.
  Result<LoadReport> load_latest(const LoadOptions& options = {});

  void tell_times(CheckpointTimes times);
  // Tells `written`, on rank 0, of the newest complete checkpoint that is not newer than this step,
  // from what the checkpoint itself says. Call it when the training goes on: a process that was
  // killed may not have told. Not collective; after prepare().
  void tell_newest(std::int64_t step) const;

  // One line for each problem that did not make the last prepare, save or wait fail, such as an old
  // checkpoint that cannot be removed, or a save of an earlier round that was not finished. Rank 0
  // only.
  const std::vector<std::string>& warnings() const;

  struct Impl;  // For the files that implement this class.

 private:
  std::unique_ptr<Impl> impl_;
};

// Hexadecimal SHA-256 over every parameter and buffer, in name order. For each: name, zero, type as
// in safetensors ("F32"), zero, shape ("[10,5]"), zero, the bytes in row-major order.
std::string weights_sha256(const torch::nn::Module& module);
std::string weights_sha256(const ModuleState& module);

}  // namespace ddp
