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

// What save() does while the save before is still being written.
enum class WhenBusy {
  kWait,  // Waits for it.
  kSkip,  // Saves nothing, and says so.
};

// The same on all ranks, but for what is local: image_limit.
struct CheckpointOptions {
  std::string directory;  // Shared by all nodes; made with its parents if it is missing.
  int keep = 3;  // How many checkpoints stay; 0 keeps all. The last valid one is never removed.
  std::int64_t keep_every = 0;  // Those of steps divisible by it stay for ever; 0: no others stay.
  bool asynchronous = true;     // false: save() returns when the checkpoint is durable.
  WhenBusy busy = WhenBusy::kWait;
  std::uint64_t bytes_per_second = 0;  // Of each rank's writing; 0: as fast as the disk.
  // What this rank may take for the copy of its share; 0: whatever the machine has left.
  std::uint64_t image_limit = 0;
  // Parameters and optimizers are the same on all ranks after a step, so each rank writes a share.
  // false: they are not (post-local SGD, a hook that does not average): rank 0's are written.
  bool ranks_are_equal = true;
  // How long prepare() waits for an earlier incarnation of this job that is still writing.
  std::chrono::milliseconds lock_wait = std::chrono::minutes(10);
};

// What became of a save; the same on all ranks.
struct SaveReport {
  enum class State {
    kNone,     // There was none.
    kWriting,  // The state is copied, training can go on; wait() or the next save() tells the end.
    kDurable,  // It is on the disk, complete, and survives a power cut.
    kSkipped,  // WhenBusy::kSkip, and the save before is still being written.
  };
  State state = State::kNone;
  std::int64_t step = -1;
  std::string path;  // Of the checkpoint; kDurable only.
  // Why it is not as asked for, such as "no memory for a copy of the state, so training waited for
  // the disk"; else empty.
  std::string note;
};

// What load_latest found; the same on all ranks.
struct LoadReport {
  std::int64_t step = -1;   // -1: there is nothing to load.
  std::int64_t epoch = -1;  // As given to save; -1 if it was not.
  int world_size = 0;       // Of the run that saved it.
  std::string path;
  // One line for each newer checkpoint passed over: which and why.
  std::vector<std::string> skipped;
  // What was left out by rule, such as per-rank state after a change of world size.
  std::vector<std::string> notes;
};

// Saves and restores all that resuming exactly needs, together with the other ranks of a process
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
// Saving. save() copies the state into memory and returns; that is all that training waits for. The
// files are written in the background, by the agent where there is one (then the checkpoint is
// finished even if every worker of the node dies meanwhile), else by a thread (CheckpointWriter).
// The ranks meet in the folder only: no collective runs in the background. How it ended is told by
// the next save() or by wait(): call wait() before the program ends, or the last failure is not
// heard of. At most one save is under way; see WhenBusy.
//
// Who writes what. Parameters and the tensors of optimizers are the same on all ranks and dealt
// among them, so N ranks copy and write an N-th each; buffers (rank 0's count), values and what of
// communication hooks is replicated are rank 0's; per-rank state (RNG, values with per_rank, what a
// hook has for its rank) is written and read by its own rank. The folder's format is
// worker/checkpoint/FORMAT.md.
//
// Memory: one copy of the rank's share, made at the first save and kept. Where there is not enough
// (or image_limit forbids it) on any rank, that save is written while training waits, and its
// report says so.
//
// One job a folder: rank 0's process holds the folder's lock from prepare() on, and what is still
// being written holds it, too, so a rank 0 that is started again sees what its predecessor's last
// save became. A crash leaves no lock behind.
//
// Where training goes on from round to round in one process (run_elastic), give all rounds'
// Checkpointers the same CheckpointWriter. Copies in the memory of other nodes are not made here
// and need not be: replicated state is on every rank, and ElasticState keeps each rank's own state
// on another node, too, so a lost node costs no checkpoint on disk while one rank is left.
//
// Expected failures are a Result, the same on all ranks, and leave the model, the optimizer and the
// checkpoints that were there as they were. CollectiveError from the process group passes through.
class Checkpointer {
 public:
  // Throws std::invalid_argument on an empty directory or a negative keep.
  // writer: null makes one of its own, without an agent.
  Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
               std::shared_ptr<CheckpointWriter> writer = nullptr);
  // With another file system, which outlives the object and the writer: for tests.
  Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
               checkpoint::FileSystem& files, std::shared_ptr<CheckpointWriter> writer = nullptr);
  // A save under way goes on; a writer of the object's own is waited for.
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
  // The same checkpoint as the optimizer alone would have, so each can go on from the other's, on
  // any number of ranks. A save costs an exchange in which every rank gives its parts and gets
  // those of the tensors that it writes. std::invalid_argument without ranks_are_equal.
  void add_optimizer(std::string name, ZeroRedundancyOptimizer& optimizer,
                     const torch::nn::Module& of);

  // The default CPU generator, per rank.
  void add_rng(std::string name = "cpu");

  // Anything else. save is called on rank 0 (per_rank: on every rank) inside save(). load is called
  // on every rank inside load_latest(), before modules and optimizers get their values. Numbers
  // come back bit for bit, also NaN and infinities. Either may throw: the call then fails with the
  // exception's text, and values loaded before get their former one back by load(save()).
  void add_value(std::string name, std::function<nlohmann::json()> save,
                 std::function<void(const nlohmann::json&)> load, bool per_rank = false);

  // State of a communication hook (CommHook::state), so that training goes on exactly: for instance
  // what PowerSGD still owes to each parameter, rank by rank. If the number of ranks has changed,
  // every rank gets the mean of what there was per rank. A checkpoint with another kind of hook
  // under this name is kMismatch, as is one without; state that the hook refuses is
  // kInvalidArgument with its words.
  void add_comm_hook(std::string name, CommHook& hook);

  // The gradients of the module's parameters as they are, each rank's own: for a save between the
  // backwards of one step, while they are being added up (no_sync). Where every save lies between
  // steps, they are not needed. If the number of ranks has changed, every rank gets the mean of
  // what there was.
  void add_gradients(std::string name, torch::nn::Module& module);

  // Makes the folder, takes its lock, removes what crashed runs left in it, and proves that every
  // rank can write there and sees what rank 0 wrote. kIo with the path and the system's reason if
  // not; kExists, naming the holder, while another job uses the folder (after the first round only
  // if it still does half a minute later); kTimeout if an earlier incarnation of this job is still
  // writing after lock_wait.
  Result<void> prepare();

  // Saves the state as it is now. A step that exists already is replaced without a moment in which
  // neither is there. What the report says is agreed by all ranks.
  //
  // An error that names an earlier step is the end of that save, told now; the state of this step
  // is being saved nevertheless. Any other error: nothing is saved. Training can go on after both.
  Result<SaveReport> save(std::int64_t step, std::int64_t epoch = -1);

  // Returns when the last save is durable, or has failed: then with its error, if save() has not
  // told it. kNone if there was none since the object was made.
  Result<SaveReport> wait();

  // Waits for this object's save under way, then restores the newest checkpoint whose every
  // checksum holds and that every rank can read. No checkpoint at all, or none valid, is success
  // with step -1. kMismatch, naming the tensor, if the checkpoint belongs to another model; kIo if
  // the folder itself cannot be read. Nothing is changed before all ranks have read and checked all
  // that they need. Modules need no second copy of their tensors meanwhile: the files are mapped.
  Result<LoadReport> load_latest(const LoadOptions& options = {});

  // One line for each thing that the last prepare, save or wait found could not be done although it
  // succeeded, such as an old checkpoint that cannot be removed, or a save of an earlier round that
  // ended with it. Rank 0 only.
  const std::vector<std::string>& warnings() const;

  struct Impl;  // For the files that implement this class.

 private:
  std::unique_ptr<Impl> impl_;
};

// Hexadecimal SHA-256 over every parameter and buffer, in name order. For each: name, zero, type as
// in safetensors ("F32"), zero, shape ("[10,5]"), zero, the bytes in row-major order.
std::string weights_sha256(const torch::nn::Module& module);

}  // namespace ddp
