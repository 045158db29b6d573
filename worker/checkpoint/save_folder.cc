#include "worker/checkpoint/save_folder.h"

#include <set>

#include "common/base/parse_number.h"

namespace ddp::checkpoint {
namespace {

constexpr std::string_view kPartPrefix = "part-";
constexpr std::string_view kFailurePrefix = "failed-";
constexpr std::string_view kLifePrefix = "alive-";
constexpr std::uint64_t kMaxText = 64 << 10;

std::string unfinished(const std::string& name) { return name + ".new"; }

}  // namespace

SaveFolder::SaveFolder(FileSystem& files, const SnapshotPlan& plan)
    : files_(&files),
      plan_(&plan),
      directory_(files, plan.directory),
      path_(directory_.temporary_path(plan.step, plan.save_id)) {}

std::string SaveFolder::part_name(Rank rank) {
  return fmt::format("{}{:05}.json", kPartPrefix, rank);
}
std::string SaveFolder::failure_name(Rank rank) {
  return fmt::format("{}{:05}", kFailurePrefix, rank);
}

std::string SaveFolder::life_name(Rank rank) { return fmt::format("{}{:05}", kLifePrefix, rank); }

bool SaveFolder::is_for_writers(std::string_view name) {
  return name.starts_with(kPartPrefix) || name.starts_with(kFailurePrefix) ||
         name.starts_with(kLifePrefix);
}

std::optional<Rank> SaveFolder::failed_rank(std::string_view name) {
  if (!name.starts_with(kFailurePrefix)) return std::nullopt;
  name.remove_prefix(kFailurePrefix.size());
  return parse_whole_number<Rank>(name);
}

Result<void> SaveFolder::make() {
  auto made = files_->make_directory(path_);
  if (!made && made.error().code != Errc::kExists) return made;
  // In this order: a rank that gives up after this look renames the folder that is there now.
  if (!files_->list(given_up_path())) return {};
  if (made) (void)files_->remove_directory(path_);
  return make_error(Errc::kAborted, "another rank has given up this save: it left {}",
                    given_up_path());
}

void SaveFolder::give_up() {
  if (!files_->rename(path_, given_up_path())) {
    (void)directory_.discard(path_);
    return;
  }
  // Its files go at once, since the disk may be full; its name is one of an unfinished save.
  auto left = files_->list(given_up_path());
  if (!left) return;
  for (const std::string& name : *left) {
    (void)files_->remove_file(join_path(given_up_path(), name));
  }
}

void SaveFolder::abandon(const std::string& reason) {
  if (plan_->publishes()) return;
  const auto published = directory_.find_save(plan_->step, plan_->save_id);
  if (published && *published) return;
  auto made = make();
  if (!made && made.error().code == Errc::kAborted) return;
  if (!made || !add_failure(reason)) give_up();
}

std::string SaveFolder::given_up_path() const { return path_ + "-given-up"; }

std::vector<Rank> SaveFolder::missing_parts(const std::set<std::string>& names) const {
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < plan_->world_size; ++rank) {
    if (!names.contains(part_name(rank))) missing.push_back(rank);
  }
  return missing;
}

bool SaveFolder::has_all_parts() {
  const auto there = names();
  return there && missing_parts({there->begin(), there->end()}).empty();
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

Result<void> SaveFolder::prepare_part(const Manifest& part) {
  auto text = manifest_to_text(part);
  if (!text) return text.error();
  const std::string name = join_path(path_, part_name(plan_->rank));
  if (auto written = write_durably(*files_, unfinished(name), *text); !written) return written;
  // Makes the names of the files that the part lists durable. The part's own name need not be: the
  // publisher makes all names durable, and after a power cut nobody needs the part.
  return files_->sync_directory(path_);
}

Result<void> SaveFolder::show_part() {
  const std::string name = join_path(path_, part_name(plan_->rank));
  return files_->rename(unfinished(name), name);
}

void SaveFolder::remove_own() {
  auto there = names();
  if (!there) return;
  const std::string part = part_name(plan_->rank);
  const std::string failure = failure_name(plan_->rank);
  const std::string life = life_name(plan_->rank);
  std::set<std::string> mine = {unfinished(part), part, unfinished(failure),
                                failure,          life, unfinished(life)};
  for (const SnapshotFile& file : plan_->files) mine.insert(file.name);
  for (const std::string& name : *there) {
    if (mine.contains(name)) (void)remove(name);
  }
}

// Without fsync: it is for processes that run now.
Result<void> SaveFolder::replace(const std::string& name, std::string_view text) {
  (void)remove(unfinished(name));
  const std::string path = join_path(path_, name);
  auto file = files_->create_file(unfinished(path));
  if (!file) return file.error();
  // On a full disk, the empty file alone is enough.
  (void)(*file)->append(text.substr(0, kMaxText));
  (void)(*file)->close();
  return files_->rename(unfinished(path), path);
}

Result<void> SaveFolder::add_failure(const std::string& reason) {
  return replace(failure_name(plan_->rank), reason);
}

void SaveFolder::add_life(const std::string& text) { (void)replace(life_name(plan_->rank), text); }

std::string SaveFolder::failure_text(Rank rank) {
  auto text = read_text(*files_, join_path(path_, failure_name(rank)), kMaxText);
  return text ? *text : std::string();
}

std::string SaveFolder::life_text(Rank rank) {
  auto text = read_text(*files_, join_path(path_, life_name(rank)), kMaxText);
  return text ? *text : std::string();
}

}  // namespace ddp::checkpoint
