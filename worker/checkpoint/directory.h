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

// One published checkpoint, as its name tells it.
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

// A folder of checkpoints. Writing is: begin, files into the folder it made (by anybody, each made
// durable by its writer), publish. Until publish has renamed it, the folder has a name that readers
// pass over, so at every moment each checkpoint is complete or absent. One writer at a time;
// readers may be anywhere.
class Directory {
 public:
  // `files` outlives the object.
  Directory(FileSystem& files, std::string path);

  const std::string& path() const { return path_; }

  enum class Leftovers {
    kRemove,  // Nobody is writing.
    kKeep,    // Somebody of this job may be: not even a crashed writer's are touched.
  };
  // Makes the folder, removes what crashed writers left behind, and proves by a real file that it
  // can be written. One line in `complaints` (if given) for a leftover that cannot be removed,
  // which is no failure.
  Result<void> prepare(std::vector<std::string>* complaints = nullptr,
                       Leftovers leftovers = Leftovers::kRemove);

  // Where the files of a save are until it is published. `unique` tells it from every other, past
  // and present.
  std::string temporary_path(std::int64_t step, std::string_view unique) const;
  // Makes that folder and returns its path.
  Result<std::string> begin(std::int64_t step, std::string_view unique);

  // Makes a folder that is no save's, for the ranks to prove that all of them can write here; ends
  // with discard. Any save may be under way, and end, meanwhile. Returns its path.
  Result<std::string> begin_probe(std::string_view unique);

  // Adds the manifest and makes the folder visible and durable under its final name, which it
  // returns. If it fails, no reader sees the checkpoint, and the temporary folder is still there,
  // for discard. An older generation of the same step is not removed: that is prune.
  Result<Entry> publish(const std::string& temporary, const Manifest& manifest);
  // Its two halves: the manifest, durable; then the name.
  Result<void> write_manifest(const std::string& temporary, const Manifest& manifest);
  Result<Entry> make_visible(const std::string& temporary, std::int64_t step);

  // Removes a temporary folder, as far as possible. Who is still writing there finds it gone.
  Result<void> discard(const std::string& temporary);

  // The complete checkpoint that a certain save has published, if it is there.
  Result<std::optional<Entry>> find_save(std::int64_t step, std::string_view save_id) const;

  // Points the symbolic link `latest` at a checkpoint. For people and scripts; nothing here reads
  // it.
  Result<void> update_latest(const Entry& entry);

  // What is no longer needed once `newest` is published: older generations of its step, and all
  // that is older than the newest `keep` that look complete (those marked bad or with a broken
  // manifest or a wrong file size do not count) and not of a step that stays for ever. Never
  // `newest`. Newest first.
  Result<std::vector<Entry>> superfluous(const Retention& retention, const Entry& newest) const;

  // Removes them. Returns one line for everything that could not be removed.
  std::vector<std::string> prune(const Retention& retention, const Entry& newest);
  // Its two halves: gives them a name that readers pass over, which is quick; then removes all that
  // has such a name, also what others have left behind. The second needs no lock.
  std::vector<std::string> retire(const Retention& retention, const Entry& newest);
  std::vector<std::string> remove_retired();

  // Removes what saves of steps up to `last` left unfinished, such as one whose ranks died. Only
  // while none of them is under way; one of a later step, or a probe, may be. One line for
  // everything that could not be removed.
  std::vector<std::string> remove_unfinished(std::int64_t last);

  // Newest first: by step, then by generation. An empty list if the folder does not exist.
  Result<std::vector<Entry>> list() const;

  // The manifest, if its own checksum holds and all files are there with the right size. Reads no
  // tensor.
  Result<Manifest> inspect(const Entry& entry) const;

  // inspect, and every byte of every file against its checksum and the manifest.
  Result<Manifest> verify(const Entry& entry) const;

  // prune does not count it as kept.
  void mark_bad(const Entry& entry) { bad_.insert(entry.name); }

 private:
  Result<void> retire_entry(const Entry& entry);
  Result<void> remove_leftover(const std::string& name);

  FileSystem* files_;
  std::string path_;
  std::set<std::string> bad_;
};

// Newest checkpoint first, then the next, checking each on the way.
class ValidSearch {
 public:
  struct Found {
    Entry entry;
    Manifest manifest;
  };

  enum class Check {
    kEveryByte,
    kManifest,  // And the sizes of the files. The caller verifies the rest, and rejects.
  };
  explicit ValidSearch(Directory& directory, Check check = Check::kEveryByte)
      : directory_(&directory), check_(check) {}

  // The newest not yet returned that passes the check; nothing if there is no more. An error only
  // if the folder itself cannot be read.
  Result<std::optional<Found>> next();

  // The one that next returned proved to be bad after all.
  void reject(const Entry& entry, std::string_view reason);

  // One line for each checkpoint passed over: its path and why.
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  Directory* directory_;
  Check check_;
  std::optional<std::vector<Entry>> entries_;
  std::size_t next_ = 0;
  std::vector<std::string> skipped_;
};

// The newest checkpoint whose every checksum holds, or nothing. `skipped` gets one line for each
// passed over.
Result<std::optional<ValidSearch::Found>> open_newest_valid(Directory& directory,
                                                            std::vector<std::string>* skipped);

}  // namespace ddp::checkpoint
