#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "worker/runtime/process_group.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddp {

namespace checkpoint {
class FileSystem;
}
class CommHook;

struct CheckpointOptions {
  std::string directory;  // Shared by all nodes; made with its parents if it is missing.
  int keep = 3;  // How many checkpoints stay; 0 keeps all. The last valid one is never removed.
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
// Register every piece of state once, in the same order on all ranks, then call prepare,
// load_latest and save. Every call is collective and belongs to the training thread. What is
// registered is referenced, not owned, and must outlive the object.
//
// Replicated state (modules, optimizers, values, of communication hooks what is equal) is written
// by rank 0 and read by all; per-rank state (RNG, values with per_rank, what a hook has for its
// rank) is written and read by its own rank. The folder's format is
// worker/checkpoint/FORMAT.md.
//
// Expected failures are a Result, the same on all ranks, and leave the model, the optimizer and the
// folder as they were. CollectiveError from the process group passes through; then too, rank 0
// removes its temporary folder.
class Checkpointer {
 public:
  // Throws std::invalid_argument on an empty directory or a negative keep.
  Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group);
  // With another file system, which outlives the object: for tests.
  Checkpointer(CheckpointOptions options, std::shared_ptr<ProcessGroup> group,
               checkpoint::FileSystem& files);
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

  // Makes the folder, removes what crashed runs left in it, and proves that every rank can write
  // there and sees what rank 0 wrote. kIo with the path and the system's reason if not. Not while
  // another job uses the folder.
  Result<void> prepare();

  // Writes, fsyncs and publishes a checkpoint; returns its path. On failure the checkpoints that
  // were there are untouched, the temporary folder is removed, and training can go on. A step that
  // exists already is replaced without a moment in which neither is there.
  Result<std::string> save(std::int64_t step, std::int64_t epoch = -1);

  // Restores the newest checkpoint whose every checksum holds and that every rank can read. No
  // checkpoint at all, or none valid, is success with step -1. kMismatch, naming the tensor, if the
  // checkpoint belongs to another model; kIo if the folder itself cannot be read. Needs memory for
  // a second copy of the state while it runs.
  Result<LoadReport> load_latest();

  // One line for each thing that the last prepare or save could not do although it succeeded, such
  // as an old checkpoint that cannot be removed. Rank 0 only.
  const std::vector<std::string>& warnings() const;

  struct Impl;  // For the files that implement this class.

 private:
  std::unique_ptr<Impl> impl_;
};

// Hexadecimal SHA-256 over every parameter and buffer, in name order. For each: name, zero, type as
// in safetensors ("F32"), zero, shape ("[10,5]"), zero, the bytes in row-major order.
std::string weights_sha256(const torch::nn::Module& module);

}  // namespace ddp
