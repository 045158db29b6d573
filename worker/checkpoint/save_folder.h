#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/snapshot.h"

namespace ddp::checkpoint {

// The temporary folder of one save, in which its ranks meet: the names and contents of the files in
// it. For the writers.
//
// A rank's part is a manifest of its own files; rank 0's also has the state. It appears by a rename
// when everything that it lists is durable, and stays until the publisher has made the manifest of
// the whole save durable. So a rank that finds its part or the manifest has nothing left to do, and
// one that finds neither may change its files, because nobody depends on them.
class SaveFolder {
 public:
  // Both outlive the object.
  SaveFolder(FileSystem& files, const SnapshotPlan& plan);

  const std::string& path() const { return path_; }
  Directory& directory() { return directory_; }

  static std::string part_name(Rank rank);
  static std::string failure_name(Rank rank);
  // The rank of a failure file; nothing for other names.
  static std::optional<Rank> failed_rank(std::string_view name);

  // Makes the folder, unless it exists.
  Result<void> make();
  // The names in it. kNotFound if it is gone.
  Result<std::vector<std::string>> names() { return files_->list(path_); }

  // A rank's part, if it is sound, belongs to this save, and all files that it lists exist.
  Result<Manifest> read_part(Rank rank) { return read_sound(part_name(rank)); }
  // The manifest of the whole save, likewise.
  Result<Manifest> read_manifest() { return read_sound(std::string(kManifestName)); }
  // Whether there is a manifest, sound or not.
  Result<bool> has_manifest();

  // Writes this rank's part, which must not exist yet.
  Result<void> add_part(const Manifest& part);

  // Removes this rank's files from the folder, as far as possible.
  void remove_own();
  // Tells the publisher that this rank has given up, as far as possible.
  void add_failure(const std::string& reason);
  // Why a rank failed; empty if it could not say.
  std::string failure_text(Rank rank);

  // Removes a file of it.
  Result<void> remove(std::string_view name) { return files_->remove_file(join_path(path_, name)); }

 private:
  Result<Manifest> read_sound(const std::string& name);

  FileSystem* files_;
  const SnapshotPlan* plan_;
  Directory directory_;
  std::string path_;
};

}  // namespace ddp::checkpoint
