#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/retention.h"

namespace ddp::checkpoint {

// One published checkpoint, as described by its name.
struct Entry {
  std::int64_t step = 0;
  std::int64_t generation = 0;  // Counts up when a step is written again.
  std::string name;             // "step-0000001234", or "step-0000001234.1" for generation 1.
  std::string path;
};

// "step-0000001234" and the like; nothing for any other name.
std::optional<Entry> parse_entry_name(std::string_view name);
std::string entry_name(std::int64_t step, std::int64_t generation);

// Whether an error of reading a checkpoint says that this checkpoint is damaged or gone, so that an
// older one may serve.
inline bool is_damage(const Error& error) {
  return error.code == Errc::kCorrupt || error.code == Errc::kIo || error.code == Errc::kNotFound;
}

// A folder of checkpoints. To write: call begin, put files into the folder that it made (any
// process may, and each writer makes its files durable), call publish. Until publish has renamed
// it, the folder has a name that readers ignore, so at every moment each checkpoint is complete or
// absent. One writer at a time; any number of readers.
class Directory {
 public:
  // `files` outlives the object.
  Directory(FileSystem& files, std::string path);

  const std::string& path() const { return path_; }

  enum class Leftovers {
    kRemove,  // Remove them: nobody is writing.
    kKeep,    // Keep all: a process of this job may be writing.
  };
  // Makes the folder, removes what crashed writers left behind, and writes a real file to prove
  // that it can. A leftover that cannot be removed is not a failure, but adds a line to
  // `complaints` (if given).
  Result<void> prepare(std::vector<std::string>* complaints = nullptr,
                       Leftovers leftovers = Leftovers::kRemove);

  // The folder for the files of a save until it is published. `unique` distinguishes it from every
  // other save, past and present.
  std::string temporary_path(std::int64_t step, std::string_view unique) const;
  // Makes that folder and returns its path.
  Result<std::string> begin(std::int64_t step, std::string_view unique);

  // Where begin_probe(unique) makes its folder.
  std::string probe_path(std::string_view unique) const;
  // Makes a folder in which all ranks prove that they can write here, and returns its path. Call
  // discard afterwards. Saves may be in progress, and end, meanwhile.
  Result<std::string> begin_probe(std::string_view unique);

  // Adds the manifest and makes the folder visible and durable under its final name, which it
  // returns. If it fails, no reader sees the checkpoint, and the temporary folder still exists;
  // call discard. It does not remove an older generation of the same step; retire does.
  Result<Entry> publish(const std::string& temporary, const Manifest& manifest);
  // The two halves of publish: write the manifest durably; then rename.
  Result<void> write_manifest(const std::string& temporary, const Manifest& manifest);
  Result<Entry> make_visible(const std::string& temporary, std::int64_t step);

  // Removes a temporary folder, as far as possible. A process that still writes there finds it
  // gone.
  Result<void> discard(const std::string& temporary);

  // The complete checkpoint that a certain save has published, if it is there.
  Result<std::optional<Entry>> find_save(std::int64_t step, std::string_view save_id) const;

  // Points the symbolic link `latest` at a checkpoint. For people and scripts; nothing here reads
  // it.
  Result<void> update_latest(const Entry& entry);

  // Renames the checkpoints that are no longer needed once `newest` is published to names that
  // readers ignore, which is quick: older generations of its step, and all that are older than the
  // newest `keep` complete ones, except steps that stay for ever. Checkpoints marked bad, with a
  // broken manifest or with a wrong file size do not count as complete. Never touches `newest`.
  // Returns one line for everything that could not be renamed.
  std::vector<std::string> retire(const Retention& retention, const Entry& newest);
  // Removes everything with such a name, also what others have left. Needs no lock. Returns one
  // line for everything that could not be removed.
  std::vector<std::string> remove_retired();

  // Removes unfinished saves of steps up to `last`, such as one whose ranks died. Call it only
  // while none of them is in progress; a save of a later step or a probe may be. Returns one line
  // for everything that could not be removed.
  std::vector<std::string> remove_unfinished(std::int64_t last);

  // Newest first: by step, then by generation. An empty list if the folder does not exist.
  Result<std::vector<Entry>> list() const;

  // Returns the manifest, if its own checksum is right and all files exist with the right size.
  // Reads no tensor.
  Result<Manifest> inspect(const Entry& entry) const;

  // Does inspect, and checks every byte of every file against its checksum and the manifest.
  Result<Manifest> verify(const Entry& entry) const;

  // retire does not count the checkpoint of this name as kept.
  void mark_bad(const std::string& name) { bad_.insert(name); }
  const std::set<std::string>& bad() const { return bad_; }

 private:
  Result<std::vector<Entry>> superfluous(const Retention& retention, const Entry& newest) const;
  Result<void> retire_entry(const Entry& entry);
  Result<void> remove_leftover(const std::string& name);

  FileSystem* files_;
  std::string path_;
  std::set<std::string> bad_;
};

// Reads the manifest `name` in a folder and checks that all files that it lists exist there with
// the right size. Reads no tensor.
Result<Manifest> read_sound_manifest(FileSystem& files, const std::string& folder,
                                     std::string_view name);

// Goes through the checkpoints, newest first, and inspects each. The caller verifies the rest, and
// calls reject.
class ValidSearch {
 public:
  struct Found {
    Entry entry;
    Manifest manifest;
  };

  explicit ValidSearch(Directory& directory) : directory_(&directory) {}

  // The newest checkpoint not yet returned that inspect finds good; nothing if there are no more.
  // An error only if the folder itself cannot be read.
  Result<std::optional<Found>> next();

  // Marks the checkpoint that next returned as bad.
  void reject(const Entry& entry, std::string_view reason);

  // One line for each checkpoint passed over: its path and why.
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  Directory* directory_;
  std::optional<std::vector<Entry>> entries_;
  std::size_t next_ = 0;
  std::vector<std::string> skipped_;
};

}  // namespace ddp::checkpoint
