#pragma once

#include <set>
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
  static std::string life_name(Rank rank);
  // Whether the file serves the writers only, and goes before the checkpoint is published.
  static bool is_for_writers(std::string_view name);
  // The rank of a failure file; nothing for other names.
  static std::optional<Rank> failed_rank(std::string_view name);

  // Makes the folder, unless it exists. kAborted if a rank has given up the save.
  Result<void> make();
  // The names in it. kNotFound if it is gone.
  Result<std::vector<std::string>> names() { return files_->list(path_); }

  // A rank's part, if it is sound, belongs to this save, and all files that it lists exist.
  Result<Manifest> read_part(Rank rank) { return read_sound(part_name(rank)); }
  // The ranks whose part is not among the names in the folder.
  std::vector<Rank> missing_parts(const std::set<std::string>& names) const;
  // Whether each rank's part is there, sound or not.
  bool has_all_parts();
  // The manifest of the whole save, if it is sound, belongs to this save, and all files exist.
  Result<Manifest> read_manifest() { return read_sound(std::string(kManifestName)); }
  // Whether there is a manifest, sound or not.
  Result<bool> has_manifest();

  // Writes this rank's part, which must not exist yet, durably under another name.
  Result<void> prepare_part(const Manifest& part);
  // Gives it its name. From then on the publisher may publish the folder.
  Result<void> show_part();

  // Removes this rank's files from the folder, as far as possible.
  void remove_own();
  // Tells the publisher that this rank has given up. The folder is there.
  Result<void> add_failure(const std::string& reason);
  // The same, for all ranks, where not even an empty file can be made: renames the folder. Ranks in
  // it find it gone, and those that have not come yet find the new name.
  void give_up();
  // Tells the publisher that this rank's share will not come, also if no rank has made the folder
  // yet; tells nobody if the save is published or given up already. Does nothing on the publisher.
  void abandon(const std::string& reason);
  // Why a rank failed; empty if it could not say.
  std::string failure_text(Rank rank);

  // Leaves a sign of life of this rank, as far as possible: every text differs from the last one,
  // and says what the rank waits for.
  void add_life(const std::string& text);
  // What a rank last said so; empty if nothing.
  std::string life_text(Rank rank);

  // Removes a file of it.
  Result<void> remove(std::string_view name) { return files_->remove_file(join_path(path_, name)); }

 private:
  Result<Manifest> read_sound(const std::string& name);
  Result<void> replace(const std::string& name, std::string_view text);
  std::string given_up_path() const;

  FileSystem* files_;
  const SnapshotPlan* plan_;
  Directory directory_;
  std::string path_;
};

}  // namespace ddp::checkpoint
