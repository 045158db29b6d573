#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/directory_lock.h"
#include "worker/checkpoint/snapshot_memory.h"
#include "worker/checkpoint/snapshot_writer.h"
#include "worker/ddp/state/checkpoint_writer.h"
#include "worker/ddp/tensors/pinned_memory.h"

namespace ddp {

namespace checkpoint {
class FileSystem;
}

// The outcome of a save that was written in the background, as this rank sees it.
struct FinishedSave {
  std::string id;
  std::int64_t step = -1;
  Result<checkpoint::Written> result = checkpoint::Written();
};

// For Checkpointer, on its thread.
class CheckpointWriter::Impl {
 public:
  explicit Impl(ControlChannel* channel) : channel_(channel) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Another round has begun: what is still being written waits less for ranks that are silent,
  // which may be gone.
  void begin_round();
  // Whether a save is in progress that take_finished() has not reported.
  bool busy() const { return under_way_ > 0; }
  // Returns when a save has ended or the time limit is over.
  void wait_for(std::chrono::milliseconds limit);
  std::vector<FinishedSave> take_finished();
  // Why no further save can begin: a thread that was given up still waits for the disk. Empty: it
  // can.
  std::string left_behind() const;

  // Memory for a snapshot, already allocated and free to use. The object owns it, and uses that of
  // the last call again if it fits. Call it only while no save is in progress. kIo with the reason
  // if there is not enough memory, or if more than `limit` (0: no limit) is needed.
  Result<std::span<std::byte>> reserve(std::uint64_t bytes, std::uint64_t limit);

  // Writes the snapshot that is in the reserved memory now. `files` outlives the object and its
  // threads. Throws std::system_error if a thread is needed and cannot start; then no save is in
  // progress.
  void write(const std::string& id, std::int64_t step, checkpoint::FileSystem& files);

  // Tells rank 0's writer that this rank's share of a save will not come. Does not wait for the
  // disk if a thread can start.
  static void abandon(checkpoint::SnapshotPlan plan, std::string reason,
                      checkpoint::FileSystem& files);

  // Takes the folder's lock, on the rank that publishes. It is held until unlock(), and longer
  // while a save is being written. Works as DirectoryLock::acquire does; success if it is held
  // already. Returns a warning, or an empty text.
  Result<std::string> lock(const std::string& directory, const std::string& job_id,
                           std::chrono::milliseconds wait);
  bool holds(const std::string& directory) const;
  void unlock();

 private:
  // What the thread that writes, or the channel's, shares with the training thread; lives as long
  // as the last of them needs it.
  struct Ends {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<FinishedSave> finished;

    void add(FinishedSave save);
  };

  // The thread of one save.
  struct Save;
  void write_by_thread(const std::string& id, std::int64_t step, checkpoint::FileSystem& files);
  void end_thread();
  bool hand_to_agent(const std::string& id, std::int64_t step, checkpoint::FileSystem& files);
  void still_waits();
  void drop_memory();

  ControlChannel* channel_;
  std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  std::shared_ptr<checkpoint::SnapshotMemory> memory_;
  PinnedMemory pinned_;  // All of *memory_, if anything.
  int under_way_ = 0;
  std::string locked_;  // The folder.
  checkpoint::DirectoryLock lock_;
  std::shared_ptr<Save> save_;  // Of thread_.
  std::thread thread_;
};

}  // namespace ddp
