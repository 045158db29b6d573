#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/snapshot_memory.h"
#include "worker/checkpoint/snapshot_writer.h"

namespace ddp {

class ControlChannel;
namespace checkpoint {
class FileSystem;
}

// The outcome of a save that was written in the background, as this rank sees it.
struct FinishedSave {
  std::string id;
  std::int64_t step = -1;
  Result<checkpoint::Written> result = checkpoint::Written();
};

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
//
// Only Checkpointer calls the methods, on its thread.
class CheckpointWriter {
 public:
  // channel: may be null; outlives the object.
  explicit CheckpointWriter(ControlChannel* channel = nullptr);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Whether a save is in progress that take_finished() has not reported.
  bool busy() const;
  // Returns when a save has ended or the time limit is over.
  void wait_for(std::chrono::milliseconds limit);
  std::vector<FinishedSave> take_finished();

  // Memory for a snapshot, already allocated and free to use. The object owns it, and uses that of
  // the last call again if it fits. Call it only while no save is in progress. kIo with the reason
  // if there is not enough memory, or if more than `limit` (0: no limit) is needed.
  Result<std::span<std::byte>> reserve(std::uint64_t bytes, std::uint64_t limit);

  // Writes the snapshot that is in the reserved memory now. `files` outlives the object.
  void write(const std::string& id, std::int64_t step, checkpoint::FileSystem& files);

  // Takes the folder's lock, on the rank that publishes. It is held until unlock(), and longer
  // while a save is being written. Works as DirectoryLock::acquire does; success if it is held
  // already. Returns a warning, or an empty text.
  Result<std::string> lock(const std::string& directory, const std::string& job_id,
                           std::chrono::milliseconds wait);
  bool holds(const std::string& directory) const;
  void unlock();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
