#pragma once

#include <memory>

namespace ddp {

class ControlChannel;

// The part of checkpointing that belongs to the process and outlives rounds: the memory for
// snapshots, what is still being written, the lock of the folder. A program that continues from
// round to round (run_elastic) makes one beside its ElasticState and passes it to each round's
// Checkpointer; then a save in progress when a round ends is neither lost nor written twice. Other
// programs do not need it: a Checkpointer without one makes its own.
//
//   ElasticWorker worker;
//   auto writer = std::make_shared<CheckpointWriter>(&worker.channel());
//   run_elastic(worker, state, [&](const std::shared_ptr<ProcessGroup>& group) {
//     Checkpointer checkpointer({.directory = "run1"}, group, writer);
//     ...
//
// With the channel of an agent that supports it, the agent holds the snapshots and starts a process
// (`ddp-checkpoint write`) that writes them. So once save() has returned, the save is finished even
// if this process dies at once. Otherwise a thread of this process writes, with the lowest
// priority; the destructor waits for it.
//
// Memory: one snapshot of what this rank writes, kept from save to save.
class CheckpointWriter {
 public:
  // channel: may be null; outlives the object.
  explicit CheckpointWriter(ControlChannel* channel = nullptr);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  class Impl;  // For Checkpointer.
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
