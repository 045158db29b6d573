#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "worker/ddp/diloco/local_replica.h"
#include "worker/ddp/replica/replica.h"
#include "worker/ddp/state/checkpoint_writer.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/runtime/process_group.h"
#include "worker/train/models/model.h"
#include "worker/train/options.h"
#include "worker/train/train_state.h"

namespace ddp::train {

// The checkpoints of one training: what is in them, which training they belong to, and what happens
// if they cannot be read or written. Every call is collective. Keeps references to its Parts; one
// thread.
//
// A checkpoint has the settings that decide the bytes of the result. Resuming with another model,
// data, seed, optimizer or communication hook would mix two trainings and is refused. Settings that
// may change during a training (learning rate, batch size, way of averaging) are taken from the
// command line, not from the checkpoint; a note names each one that changed.
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
    TrainState& state;
    std::shared_ptr<CheckpointWriter> writer;     // Lives as long as the process.
    std::function<void(const std::string&)> say;  // Prints a line for the user.
  };
  explicit TrainingCheckpoint(Parts parts);

  // Makes the folder and, with `load`, restores the newest valid checkpoint; says which one, and
  // which damaged ones it skipped. Returns whether it restored one. Throws TrainingFailure:
  // kExitInvalidValue if the checkpoint is another training's; kExitCheckpointUnwritable if the
  // folder cannot be used, or kExitCheckpointFailed if it can no longer be used after round 0.
  bool resume(bool load = true);

  // Saves the state after state.step, in the background with --checkpoint-async on. If this save
  // fails, or the one before turns out to have failed: with --checkpoint-failure stop, throws
  // TrainingFailure with kExitCheckpointFailed; with continue, prints a warning and returns.
  void save();

  // The Checkpointer's.
  void tell_times(CheckpointTimes times) { checkpointer_.tell_times(std::move(times)); }
  void tell_newest(std::int64_t step) const { checkpointer_.tell_newest(step); }

  // Waits until the last save has ended. Returns whether it is on disk. Failures are as in save().
  bool wait();

 private:
  // The settings for the checkpoint: these options, the size of the data and the threads.
  nlohmann::json settings_of(const Options& options) const;
  void compare_settings(const nlohmann::json& saved);
  void tell_warnings();
  void fail(const Error& error);
  std::string hint(const Error& error) const;

  Parts parts_;
  Checkpointer checkpointer_;
  std::unique_ptr<LocalReplica> local_;  // Null if ranks are equal after each step.
  std::string other_training_;           // Message if the checkpoint is another training's.
};

}  // namespace ddp::train
