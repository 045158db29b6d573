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

// What became of a save that was written in the background; this rank's view.
struct FinishedSave {
  std::string id;
  std::int64_t step = -1;
  Result<checkpoint::Written> result = checkpoint::Written();
};

// The part of checkpointing that belongs to the process and outlives rounds: the memory for
// snapshots, what is still being written, the lock of the folder. A program that goes on from round
// to round (run_elastic) makes one beside its ElasticState and gives it to each round's
// Checkpointer; then a save that was under way when a round ended is neither lost nor written
// twice. Other programs need not know of it: a Checkpointer without one makes its own.
//
//   ElasticWorker worker;
//   auto writer = std::make_shared<CheckpointWriter>(&worker.channel());
//   run_elastic(worker, state, [&](const std::shared_ptr<ProcessGroup>& group) {
//     Checkpointer checkpointer({.directory = "run1"}, group, writer);
//     ...
//
// With the channel of an agent that can, the agent holds the snapshots and has them written by a
// process of its own (`ddp-checkpoint write`), so a save that save() has returned from is finished
// even if this process dies at once. Otherwise a thread of this process writes, with the lowest
// priority; the destructor waits for it.
//
// Memory: one snapshot of what this rank writes, kept from save to save.
//
// The methods are Checkpointer's and for its thread.
class CheckpointWriter {
 public:
  // channel: may be null; outlives the object.
  explicit CheckpointWriter(ControlChannel* channel = nullptr);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Whether a save is under way that has not been reported by take_finished().
  bool busy() const;
  // Returns when one has ended or the time is over.
  void wait_for(std::chrono::milliseconds limit);
  std::vector<FinishedSave> take_finished();

  // Memory for a snapshot, present and free, which stays the object's: of the last call of this
  // size, if it can be. Only while nothing is under way. kIo, with the reason in words, if there is
  // not enough, or more than `limit` (0: none) is needed.
  Result<std::span<std::byte>> reserve(std::uint64_t bytes, std::uint64_t limit);

  // Writes the snapshot that is in the reserved memory now. `files` outlives the object.
  void write(const std::string& id, std::int64_t step, checkpoint::FileSystem& files);

  // The folder's lock, of the rank that publishes. Held until unlock(), by what is being written
  // also after that. As DirectoryLock::acquire; success if it is held already. An empty text, or a
  // warning.
  Result<std::string> lock(const std::string& directory, const std::string& job_id,
                           std::chrono::milliseconds wait);
  bool holds(const std::string& directory) const;
  void unlock();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
