#include "worker/checkpoint/snapshot_writer.h"

#include <map>
#include <memory>
#include <utility>

#include "worker/checkpoint/call_watch.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/save_folder.h"
#include "worker/checkpoint/save_time.h"
#include "worker/checkpoint/snapshot_publish.h"

namespace ddp::checkpoint {
namespace {

Manifest empty_part(const SnapshotPlan& plan) {
  Manifest part = plan.common_manifest();
  part.rank_state.assign(static_cast<std::size_t>(plan.world_size), nlohmann::json::object());
  part.rank_state[static_cast<std::size_t>(plan.rank)] = plan.rank_state;
  return part;
}

std::uint64_t bytes_of(const Manifest& part) {
  std::uint64_t bytes = 0;
  for (const FileRecord& file : part.files) bytes += file.bytes;
  return bytes;
}

// The bytes of the snapshot's tensors; does not look at the disk.
std::uint64_t bytes_of(const Snapshot& snapshot) {
  std::uint64_t bytes = 0;
  for (const auto& file : snapshot.bytes) {
    for (const auto& tensor : file) bytes += tensor.size();
  }
  return bytes;
}

// One call of write_snapshot.
class Writing {
 public:
  Writing(FileSystem& files, const Snapshot& snapshot, const WriterOptions& options)
      : snapshot_(snapshot),
        plan_(snapshot.plan),
        options_(options),
        watched_(options.on_standing ? std::make_unique<WatchedFiles>(files) : nullptr),
        files_(watched_ ? *watched_ : files),
        folder_(files_, plan_),
        time_(options, plan_.bytes_per_second),
        life_(files, plan_) {
    if (!watched_) return;
    watch_ = std::make_unique<CallWatch>(*watched_, [this](const StandingCall& call) {
      const bool is_over = call.seconds >= std::chrono::duration<double>(plan_.timeout).count();
      // The others learn of the end before the caller does, who may end this process.
      if (is_over && !std::exchange(is_over_, true)) return life_.fail(call.text());
      if (!is_over) life_.tell(call.text());
      options_.on_standing(call);
    });
  }

  Result<Written> run() {
    auto done = plan_.publishes() ? publish() : contribute();
    if (!done) return given_up(done.error());
    written_.seconds = time_.seconds();
    return written_;
  }

 private:
  Result<void> contribute() {
    // Look in the order in which a publisher proceeds: the part, the manifest, the checkpoint. In
    // another order all three could be missed, and files of a published checkpoint be removed. The
    // same could happen if a failed look counted as "not there".
    auto part = folder_.read_part(plan_.rank);
    if (part) {
      written_.bytes = bytes_of(*part);
      return {};
    }
    if (part.error().code == Errc::kIo) return part.error();
    written_.bytes = bytes_of(snapshot_);
    auto merged = folder_.has_manifest();
    if (!merged) return merged.error();
    if (*merged) return {};
    auto published = folder_.directory().find_save(plan_.step, plan_.save_id);
    if (!published) return published.error();
    if (*published) return {};
    auto shared = write_share();
    // A failed rename may have happened anyway (NFS). Then the publisher relies on the part.
    if (!shared && folder_.read_part(plan_.rank)) return {};
    return shared;
  }

  Result<void> publish() {
    Directory& directory = folder_.directory();
    auto published = directory.find_save(plan_.step, plan_.save_id);
    if (!published) return published.error();
    if (*published) {
      // An earlier publisher died after the rename, perhaps before it was durable.
      written_.bytes = bytes_of(snapshot_);
      if (auto synced = files_.sync_directory(plan_.directory); !synced) return synced;
      return finish(**published);
    }
    if (auto part = folder_.read_part(plan_.rank)) {
      written_.bytes = bytes_of(*part);
    } else if (folder_.read_manifest()) {
      written_.bytes = bytes_of(snapshot_);
    } else if (auto shared = write_share(); !shared) {
      return shared;
    }
    auto entry = publish_save(files_, folder_, plan_, time_, options_, written_.warnings);
    if (!entry) return entry.error();
    return finish(*entry);
  }

  Result<void> finish(const Entry& entry) {
    written_.path = entry.path;
    for (const std::string& name : plan_.damaged) folder_.directory().mark_bad(name);
    for (std::string& line :
         tidy_up(folder_.directory(), entry, plan_.retention, options_.leaves_retired)) {
      written_.warnings.push_back(std::move(line));
    }
    return {};
  }

  Result<void> write_share() {
    if (auto alive = time_.alive(); !alive) return alive;
    if (auto made = folder_.make(); !made) {
      if (made.error().code == Errc::kAborted) return made;
      // If this fails, too, the publisher waits until its timeout.
      if (folder_.make()) (void)folder_.add_failure(made.error().message);
      return made;
    }
    touched_ = true;
    folder_.remove_own();
    if (!plan_.publishes()) life_.begin();
    Manifest part = empty_part(plan_);
    for (std::size_t i = 0; i < plan_.files.size(); ++i) {
      if (plan_.files[i].tensors.empty()) continue;
      if (auto added = write_file(i, part); !added) return added;
    }
    written_.bytes = bytes_of(part);
    if (auto prepared = folder_.prepare_part(part); !prepared) return prepared;
    stop_life();
    auto shown = folder_.show_part();
    shared_ = shown.has_value();
    return shown;
  }

  void stop_life() {
    std::optional<WatchedFiles::Call> call;
    if (watched_) call.emplace(*watched_, "write", SaveFolder::life_name(plan_.rank));
    life_.stop();
  }

  Result<void> write_file(std::size_t index, Manifest& part) {
    const SnapshotFile& file = plan_.files[index];
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      const SnapshotTensor& tensor = file.tensors[i];
      views.push_back({tensor.name, tensor.type, tensor.shape, snapshot_.bytes[index][i]});
    }
    auto written = write_safetensors(files_, join_path(folder_.path(), file.name), std::move(views),
                                     {}, time_.pace());
    if (!written) return written.error();
    part.files.push_back({file.name, written->bytes, written->checksum});
    std::map<std::string, std::string> checksums;
    for (auto& tensor : written->tensors) checksums[tensor.name] = std::move(tensor.checksum);
    for (const SnapshotTensor& tensor : file.tensors) {
      part.tensors.push_back({tensor.name, file.owner, file.name, tensor.type, tensor.shape,
                              checksums.at(tensor.name)});
    }
    return {};
  }

  // Cleans up and returns the error to report.
  Error given_up(const Error& error) {
    stop_life();
    const auto names = folder_.names();
    const bool gone = !names && names.error().code == Errc::kNotFound;
    if (gone && touched_ && !shared_ && error.code != Errc::kAborted) {
      return make_error(Errc::kAborted, "{} has given up this save ({})",
                        plan_.publishes() ? "another rank" : "rank 0", error.message);
    }
    if (plan_.publishes()) {
      (void)folder_.directory().discard(folder_.path());
      return error;
    }
    if (touched_) folder_.remove_own();
    if (!gone && !folder_.add_failure(error.message)) folder_.give_up();
    return error;
  }

  const Snapshot& snapshot_;
  const SnapshotPlan& plan_;
  const WriterOptions& options_;
  const std::unique_ptr<WatchedFiles> watched_;
  FileSystem& files_;
  SaveFolder folder_;
  SaveTime time_;
  LifeFile life_;
  bool touched_ = false;  // This call may have created files.
  bool shared_ = false;   // Its part is there.
  bool is_over_ = false;  // For watch_: a call has stood for the save's timeout.
  Written written_;
  std::unique_ptr<CallWatch> watch_;  // Uses the others until it is gone.
};

}  // namespace

Result<Written> write_snapshot(FileSystem& files, const Snapshot& snapshot,
                               const WriterOptions& options) {
  if (auto good = check_plan(snapshot.plan); !good) return good.error();
  DDP_CHECK(snapshot.bytes.size() == snapshot.plan.files.size(), "{} of {} files",
            snapshot.bytes.size(), snapshot.plan.files.size());
  return Writing(files, snapshot, options).run();
}

}  // namespace ddp::checkpoint
