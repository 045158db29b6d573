#include "worker/checkpoint/save_folder.h"

#include <set>

#include "common/base/parse_number.h"

namespace ddp::checkpoint {
namespace {

constexpr std::string_view kFailurePrefix = "failed-";
constexpr std::uint64_t kMaxFailureText = 64 << 10;

std::string unfinished(const std::string& name) { return name + ".new"; }

}  // namespace

SaveFolder::SaveFolder(FileSystem& files, const SnapshotPlan& plan)
    : files_(&files),
      plan_(&plan),
      directory_(files, plan.directory),
      path_(directory_.temporary_path(plan.step, plan.save_id)) {}

std::string SaveFolder::part_name(Rank rank) { return fmt::format("part-{:05}.json", rank); }
std::string SaveFolder::failure_name(Rank rank) {
  return fmt::format("{}{:05}", kFailurePrefix, rank);
}

std::optional<Rank> SaveFolder::failed_rank(std::string_view name) {
  if (!name.starts_with(kFailurePrefix)) return std::nullopt;
  name.remove_prefix(kFailurePrefix.size());
  return parse_whole_number<Rank>(name);
}

Result<void> SaveFolder::make() {
  auto made = files_->make_directory(path_);
  if (!made && made.error().code != Errc::kExists) return made;
  return {};
}

Result<bool> SaveFolder::has_manifest() {
  auto file = files_->open_file(join_path(path_, kManifestName));
  if (!file && file.error().code != Errc::kNotFound) return file.error();
  return file.has_value();
}

Result<Manifest> SaveFolder::read_sound(const std::string& name) {
  auto manifest = read_sound_manifest(*files_, path_, name);
  if (!manifest) return manifest;
  if (manifest->save_id != plan_->save_id || manifest->step != plan_->step ||
      manifest->world_size != plan_->world_size) {
    return make_error(Errc::kMismatch,
                      "{} belongs to save {}, step {}, world size {}, not to {}, {}, {}",
                      join_path(path_, name), manifest->save_id, manifest->step,
                      manifest->world_size, plan_->save_id, plan_->step, plan_->world_size);
  }
  return manifest;
}

Result<void> SaveFolder::add_part(const Manifest& part) {
  auto text = manifest_to_text(part);
  if (!text) return text.error();
  const std::string name = join_path(path_, part_name(plan_->rank));
  if (auto written = write_durably(*files_, unfinished(name), *text); !written) return written;
  // Makes the names of the files that the part lists durable. The part's own name need not be: the
  // publisher makes all names durable, and after a power cut nobody needs the part.
  if (auto synced = files_->sync_directory(path_); !synced) return synced;
  return files_->rename(unfinished(name), name);
}

void SaveFolder::remove_own() {
  auto there = names();
  if (!there) return;
  const std::string part = part_name(plan_->rank);
  const std::string failure = failure_name(plan_->rank);
  std::set<std::string> mine = {unfinished(part), part, unfinished(failure), failure};
  for (const SnapshotFile& file : plan_->files) mine.insert(file.name);
  for (const std::string& name : *there) {
    if (mine.contains(name)) (void)remove(name);
  }
}

void SaveFolder::add_failure(const std::string& reason) {
  const std::string name = join_path(path_, failure_name(plan_->rank));
  auto file = files_->create_file(unfinished(name));
  if (!file) return;
  // On a full disk, the empty file alone is enough.
  (void)(*file)->append(std::string_view(reason).substr(0, kMaxFailureText));
  (void)(*file)->close();
  (void)files_->rename(unfinished(name), name);
}

std::string SaveFolder::failure_text(Rank rank) {
  auto text = read_text(*files_, join_path(path_, failure_name(rank)), kMaxFailureText);
  return text ? *text : std::string();
}

}  // namespace ddp::checkpoint
