#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/ddp/state/checkpoint_collect.h"
#include "worker/ddp/state/checkpoint_writer_impl.h"
#include "worker/ddp/state/checkpointer.h"
#include "worker/ddp/state/registered_state.h"

// Inside of Checkpointer: what is registered, and the collective procedures over it.
namespace ddp {

struct Checkpointer::Impl : RegisteredState {
  Impl(CheckpointOptions chosen, std::shared_ptr<ProcessGroup> process_group,
       checkpoint::FileSystem& file_system, std::shared_ptr<CheckpointWriter> process_writer);

  // checkpoint_prepare.cc
  Result<void> prepare();

  // checkpoint_save.cc
  Result<SaveReport> save(std::int64_t step, std::int64_t epoch);
  Result<SaveReport> wait();
  void tell_newest(std::int64_t step) const;

  // checkpoint_load.cc
  Result<LoadReport> load_latest(const LoadOptions& chosen);

  CheckpointOptions options;
  std::shared_ptr<ProcessGroup> group;
  checkpoint::FileSystem& files;
  checkpoint::Directory directory;
  std::shared_ptr<CheckpointWriter> writer;
  std::vector<std::string> warnings;
  CheckpointTimes times;

 private:
  Result<void> take_lock();
  Result<void> prove_writable();
  Result<void> write_probe(const std::string& probe);

  // A share that is ready to be written, but for the save id.
  struct Share {
    checkpoint::SnapshotLayout layout;
    std::vector<at::Tensor> sources;
    std::vector<WantedWhole> wanted;
    std::vector<std::size_t> wanted_sources;
    std::string registered;
    std::string shared;
  };
  Result<Share> make_share(std::int64_t step, std::int64_t epoch);
  void choose_word();
  void note_finished(std::int64_t before_step);
  void note_earlier(FinishedSave save, std::int64_t before_step);
  std::string lack_of_memory(std::uint64_t bytes);
  Result<void> compare_registrations(const Share& share);
  void gather_parts(Share& share);
  void tell_held();
  void tell_written(std::int64_t step, double seconds);
  void tell(const std::function<void(std::int64_t, double)>& listener, std::int64_t step,
            double seconds);
  bool copy_share(const Share& share);
  void write_in_background(const Share& share);
  void write_now(const Share& share);
  void wait_until_free();
  void tell_publisher(bool it_waits);
  std::string folder_path() const;
  Result<SaveReport> conclude_if(bool any_failed);
  Result<SaveReport> conclude();

  std::string word_;         // Of this object, the same on all ranks and nobody else's.
  std::int64_t serial_ = 0;  // Of its saves.
  // This object's save whose end all ranks have not agreed on yet.
  struct Pending {
    std::string id;
    std::int64_t step = -1;
    TimePoint begun;                                    // save().
    std::optional<Result<checkpoint::Written>> result;  // Of this rank's share; empty: under way.
    std::optional<TimePoint> awaited_since = {};  // The publisher waits though this share failed.
    bool is_told = false;                         // The publisher, that it will not come.
  };
  std::optional<Pending> pending_;
  SaveReport last_;
};

// A word that no other writer, now or earlier, has used.
std::string unique_word();

}  // namespace ddp
