#include "worker/checkpoint/directory.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "common/base/parse_number.h"
#include "worker/checkpoint/reader.h"

namespace ddp::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kRemovedPrefix = ".tmp-removed-";
constexpr std::string_view kLatestName = "latest";
constexpr std::string_view kProbeName = "probe";

// The step of a folder made by begin(); nothing for other names.
std::optional<std::int64_t> step_of_temporary(std::string_view name) {
  if (!name.starts_with(kTemporaryPrefix)) return std::nullopt;
  name.remove_prefix(kTemporaryPrefix.size());
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  return parse_whole_number<std::int64_t>(name.substr(0, name.find('-')), 0);
}

}  // namespace

std::string entry_name(std::int64_t step, std::int64_t generation) {
  std::string name = fmt::format("{}{:010}", kStepPrefix, step);
  if (generation > 0) name += fmt::format(".{}", generation);
  return name;
}

std::optional<Entry> parse_entry_name(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  std::string_view digits = name.substr(kStepPrefix.size());
  std::string_view generation = "0";
  if (const std::size_t dot = digits.find('.'); dot != std::string_view::npos) {
    generation = digits.substr(dot + 1);
    digits = digits.substr(0, dot);
  }
  const auto step_number = parse_whole_number<std::int64_t>(digits, 0);
  const auto generation_number = parse_whole_number<std::int64_t>(generation, 0);
  if (!step_number || !generation_number) return std::nullopt;
  // Accept only the spelling that is written: two names must not mean the same checkpoint.
  if (entry_name(*step_number, *generation_number) != name) return std::nullopt;
  return Entry{*step_number, *generation_number, std::string(name), ""};
}

Directory::Directory(FileSystem& files, std::string path)
    : files_(&files), path_(std::move(path)) {}

Result<void> Directory::prepare(std::vector<std::string>* complaints, Leftovers leftovers) {
  if (auto made = make_directories(*files_, path_); !made) return made;
  auto names = files_->list(path_);
  if (!names) return names.error();
  for (const std::string& name : *names) {
    if (leftovers == Leftovers::kKeep || !name.starts_with(kTemporaryPrefix)) continue;
    auto removed = remove_leftover(name);
    if (!removed && complaints != nullptr) complaints->push_back(removed.error().message);
  }
  const std::string probe =
      join_path(path_, std::string(kTemporaryPrefix) + std::string(kProbeName));
  auto written = write_durably(*files_, probe, "probe\n");
  if (!written &&
      written.error().code == Errc::kExists) {  // Left by a process that was killed here.
    if (auto removed = files_->remove_file(probe); !removed) return removed;
    written = write_durably(*files_, probe, "probe\n");
  }
  if (!written) {
    if (written.error().code != Errc::kExists) (void)files_->remove_file(probe);
    return written;
  }
  return files_->remove_file(probe);
}

Result<void> Directory::remove_leftover(const std::string& name) {
  const std::string path = join_path(path_, name);
  // A link, such as the next `latest`, is removed itself. Listing it would list a checkpoint.
  auto removed = files_->remove_file(path);
  if (removed) return removed;
  if (removed.error().code == Errc::kNotFound) return {};  // Another process has removed it.
  if (removed.error().code == Errc::kInvalidArgument) return remove_tree(*files_, path);
  return removed;
}

std::string Directory::temporary_path(std::int64_t step, std::string_view unique) const {
  DDP_CHECK(step >= 0, "step {}", step);
  return join_path(path_, fmt::format("{}{}-{}", kTemporaryPrefix, entry_name(step, 0), unique));
}

Result<std::string> Directory::begin(std::int64_t step, std::string_view unique) {
  std::string temporary = temporary_path(step, unique);
  if (auto made = files_->make_directory(temporary); !made) return made.error();
  return temporary;
}

std::string Directory::probe_path(std::string_view unique) const {
  return join_path(path_, fmt::format("{}{}-{}", kTemporaryPrefix, kProbeName, unique));
}

Result<std::string> Directory::begin_probe(std::string_view unique) {
  std::string probe = probe_path(unique);
  if (auto made = files_->make_directory(probe); !made) return made.error();
  return probe;
}

Result<Entry> Directory::publish(const std::string& temporary, const Manifest& manifest) {
  if (auto written = write_manifest(temporary, manifest); !written) return written.error();
  return make_visible(temporary, manifest.step);
}

Result<void> Directory::write_manifest(const std::string& temporary, const Manifest& manifest) {
  auto text = manifest_to_text(manifest);
  if (!text) return text.error();
  auto written = write_durably(*files_, join_path(temporary, kManifestName), *text);
  if (!written) return written;
  return files_->sync_directory(temporary);
}

Result<Entry> Directory::make_visible(const std::string& temporary, std::int64_t step) {
  auto entries = list();
  if (!entries) return entries.error();
  std::int64_t generation = 0;
  for (const Entry& entry : *entries) {
    if (entry.step == step) generation = std::max(generation, entry.generation + 1);
  }
  Entry entry{step, generation, entry_name(step, generation), ""};
  entry.path = join_path(path_, entry.name);
  if (auto renamed = files_->rename(temporary, entry.path); !renamed) return renamed.error();
  if (auto synced = files_->sync_directory(path_); !synced) {
    // It is complete but may vanish in a power cut, so it does not count. Undo the rename, to leave
    // nothing half done.
    (void)files_->rename(entry.path, temporary);
    return synced.error();
  }
  bad_.erase(entry.name);
  return entry;
}

Result<void> Directory::discard(const std::string& temporary) {
  std::string_view name = std::string_view(temporary).substr(temporary.rfind('/') + 1);
  DDP_CHECK(name.starts_with(kTemporaryPrefix), "{}", temporary);
  name.remove_prefix(kTemporaryPrefix.size());
  // Rename it first, so that other writers can put nothing more into it. If that fails, remove it
  // anyway.
  const std::string removed = join_path(path_, std::string(kRemovedPrefix).append(name));
  return remove_tree(*files_, files_->rename(temporary, removed) ? removed : temporary);
}

Result<std::optional<Entry>> Directory::find_save(std::int64_t step,
                                                  std::string_view save_id) const {
  auto entries = list();
  if (!entries) return entries.error();
  for (const Entry& entry : *entries) {
    if (entry.step != step) continue;
    const auto manifest = inspect(entry);
    if (manifest && manifest->save_id == save_id) return std::optional<Entry>(entry);
  }
  return std::optional<Entry>();
}

Result<void> Directory::update_latest(const Entry& entry) {
  const std::string link =
      join_path(path_, std::string(kTemporaryPrefix) + std::string(kLatestName));
  auto made = files_->make_symlink(entry.name, link);
  if (!made && made.error().code == Errc::kExists) {
    if (auto removed = files_->remove_file(link); !removed) return removed;
    made = files_->make_symlink(entry.name, link);
  }
  if (!made) return made;
  if (auto renamed = files_->rename(link, join_path(path_, kLatestName)); !renamed) {
    (void)files_->remove_file(link);
    return renamed;
  }
  return files_->sync_directory(path_);
}

Result<std::vector<Entry>> Directory::superfluous(const Retention& retention,
                                                  const Entry& newest) const {
  const auto& [keep, keep_every] = retention;
  DDP_CHECK(keep >= 0 && keep_every >= 0, "keep {}, keep every {}", keep, keep_every);
  auto entries = list();
  if (!entries) return entries;
  std::vector<Entry> result;
  int kept = 0;
  for (Entry& entry : *entries) {
    if (entry.name == newest.name) {
      ++kept;
      continue;
    }
    const bool replaced = entry.step == newest.step && entry.generation < newest.generation;
    const bool stays = keep == 0 || (keep_every > 0 && entry.step % keep_every == 0);
    if (replaced || (kept >= keep && !stays)) {
      result.push_back(std::move(entry));
    } else if (kept < keep && !bad_.contains(entry.name) && inspect(entry)) {
      ++kept;
    }
  }
  return result;
}

std::vector<std::string> Directory::retire(const Retention& retention, const Entry& newest) {
  auto entries = superfluous(retention, newest);
  if (!entries) return {entries.error().message};
  std::vector<std::string> complaints;
  for (const Entry& entry : *entries) {
    if (auto retired = retire_entry(entry); !retired) complaints.push_back(retired.error().message);
  }
  return complaints;
}

std::vector<std::string> Directory::remove_unfinished(std::int64_t last) {
  auto names = files_->list(path_);
  if (!names) return {names.error().message};
  std::vector<std::string> complaints;
  for (const std::string& name : *names) {
    // Leave others' probes and links alone.
    if (step_of_temporary(name).value_or(INT64_MAX) > last) continue;
    if (auto removed = remove_leftover(name); !removed) {
      complaints.push_back(removed.error().message);
    }
  }
  return complaints;
}

std::vector<std::string> Directory::remove_retired() {
  auto names = files_->list(path_);
  if (!names) return {names.error().message};
  std::vector<std::string> complaints;
  for (const std::string& name : *names) {
    if (!name.starts_with(kRemovedPrefix)) continue;
    if (auto removed = remove_leftover(name); !removed) {
      complaints.push_back(removed.error().message);
    }
  }
  return complaints;
}

Result<void> Directory::retire_entry(const Entry& entry) {
  // Hide it first, durably: a half-removed checkpoint must never be seen under its name.
  const std::string removed = join_path(path_, std::string(kRemovedPrefix).append(entry.name));
  if (auto renamed = files_->rename(entry.path, removed); !renamed) return renamed;
  return files_->sync_directory(path_);
}

Result<std::vector<Entry>> Directory::list() const {
  auto names = files_->list(path_);
  if (!names) {
    if (names.error().code == Errc::kNotFound) return std::vector<Entry>();
    return names.error();
  }
  std::vector<Entry> entries;
  for (const std::string& name : *names) {
    if (auto entry = parse_entry_name(name)) {
      entry->path = join_path(path_, name);
      entries.push_back(std::move(*entry));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.step, a.generation) > std::tie(b.step, b.generation);
  });
  return entries;
}

Result<Manifest> read_sound_manifest(FileSystem& files, const std::string& folder,
                                     std::string_view name) {
  const std::string path = join_path(folder, name);
  auto text = read_text(files, path, kMaxManifestBytes);
  if (!text) return text.error();
  auto manifest = parse_manifest(*text);
  if (!manifest) return Error{manifest.error().code, path + ": " + manifest.error().message};
  for (const FileRecord& record : manifest->files) {
    const std::string file_path = join_path(folder, record.name);
    auto file = files.open_file(file_path);
    if (!file) return file.error();
    if ((*file)->size() != record.bytes) {
      return make_error(Errc::kCorrupt, "{} has {} bytes, but {} are recorded", file_path,
                        (*file)->size(), record.bytes);
    }
  }
  return manifest;
}

Result<Manifest> Directory::inspect(const Entry& entry) const {
  auto manifest = read_sound_manifest(*files_, entry.path, kManifestName);
  if (manifest && manifest->step != entry.step) {
    return make_error(Errc::kCorrupt, "{} is for step {}, but its folder for step {}",
                      join_path(entry.path, kManifestName), manifest->step, entry.step);
  }
  return manifest;
}

Result<Manifest> Directory::verify(const Entry& entry) const {
  auto manifest = inspect(entry);
  if (!manifest) return manifest;
  Reader reader(*files_, entry.path, *manifest);
  for (const FileRecord& record : manifest->files) {
    if (auto good = reader.verify(record); !good) return good.error();
  }
  return manifest;
}

Result<std::optional<ValidSearch::Found>> ValidSearch::next() {
  if (!entries_) {
    auto entries = directory_->list();
    if (!entries) return entries.error();
    entries_ = std::move(*entries);
  }
  while (next_ < entries_->size()) {
    const Entry& entry = (*entries_)[next_++];
    auto manifest = directory_->inspect(entry);
    if (manifest) return std::optional<Found>(Found{entry, std::move(*manifest)});
    reject(entry, manifest.error().message);
  }
  return std::optional<Found>();
}

void ValidSearch::reject(const Entry& entry, std::string_view reason) {
  directory_->mark_bad(entry.name);
  skipped_.push_back(fmt::format("{} passed over: {}", entry.path, reason));
}

}  // namespace ddp::checkpoint
