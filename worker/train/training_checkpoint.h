#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "worker/ddp/diloco/local_replica.h"
#include "worker/ddp/replica/replica.h"
#include "worker/ddp/state/checkpoint_writer.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/runtime/process_group.h"
#include "worker/train/logical_replica.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"
#include "worker/train/train_state.h"

namespace ddp::train {

// The checkpoints of one training: what is in them, which training they belong to, and what happens
// if they cannot be read or written. Every call is collective. Refers to what it is given; one
// thread.
//
// A checkpoint names the settings that decide the bytes of the result. Resuming another model,
// data, seed, optimizer or communication hook would be a mixture of two trainings and is refused.
// What can sensibly change in the middle (learning rate, batch size, ways of averaging) may, with a
// note: the command line holds, not the checkpoint.
class TrainingCheckpoint {
 public:
  struct Parts {
    const Options& options;
    std::int64_t train_samples;
    int threads;
    std::shared_ptr<ProcessGroup> group;
    Model& model;
    torch::optim::Optimizer& optimizer;
    Replica& replica;
    LogicalReplica* logical;  // The same with --logical-world-size, else null.
    TrainState& state;
    std::shared_ptr<CheckpointWriter> writer;     // Of the process.
    std::function<void(const std::string&)> say;  // A line for the user.
  };
  explicit TrainingCheckpoint(Parts parts);

  // Makes the folder and, with `load`, restores the newest valid checkpoint; says which, and which
  // were passed over. Whether there was one. Throws Failure: kExitCheckpointUnwritable, or
  // kExitInvalidValue if the checkpoint is another training's.
  bool resume(bool load = true);

  // Saves the state after state.step, as the options say in the background. Where that fails, or is
  // found out to have failed for the save before: a Failure with kExitCheckpointFailed, or a
  // warning and training goes on, as the options say.
  void save();

  // Returns when the last save is on the disk: whether it is. Failures as of save().
  bool wait();

 private:
  // What these options mean for a training of this data with these threads.
  nlohmann::json settings_of(const Options& options) const;
  void compare_settings(const nlohmann::json& saved);
  void tell_warnings();
  void fail(const Error& error);
  std::string hint(const Error& error) const;

  Parts parts_;
  Checkpointer checkpointer_;
  std::unique_ptr<LocalReplica> local_;  // Null where ranks are equal after each step.
  std::string other_training_;           // Why the checkpoint is not of this training.
};

}  // namespace ddp::train
