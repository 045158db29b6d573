#include "worker/checkpoint/directory.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/safetensors.h"

namespace ddp::checkpoint {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kLatestName = "latest";
constexpr std::string_view kProbeName = "probe";
constexpr std::size_t kReadPiece = std::size_t{1} << 20;

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
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
  const auto step_number = parse_number(digits);
  const auto generation_number = parse_number(generation);
  if (!step_number || !generation_number) return std::nullopt;
  // Only the one spelling that is written is read: two names must not mean the same.
  if (entry_name(*step_number, *generation_number) != name) return std::nullopt;
  return Entry{*step_number, *generation_number, std::string(name), ""};
}

Directory::Directory(FileSystem& files, std::string path)
    : files_(&files), path_(std::move(path)) {}

Result<void> Directory::prepare(std::vector<std::string>* complaints) {
  if (auto made = make_directories(*files_, path_); !made) return made;
  auto names = files_->list(path_);
  if (!names) return names.error();
  for (const std::string& name : *names) {
    if (!name.starts_with(kTemporaryPrefix)) continue;
    const std::string leftover = join_path(path_, name);
    // A leftover is a folder, a link or a probe.
    auto removed =
        files_->list(leftover) ? remove_tree(*files_, leftover) : files_->remove_file(leftover);
    if (!removed && complaints != nullptr) complaints->push_back(removed.error().message);
  }
  const std::string probe =
      join_path(path_, std::string(kTemporaryPrefix) + std::string(kProbeName));
  if (auto written = write_durably(*files_, probe, "probe\n"); !written) {
    if (written.error().code != Errc::kExists) (void)files_->remove_file(probe);
    return written;
  }
  return files_->remove_file(probe);
}

Result<std::string> Directory::begin(std::int64_t step, std::string_view unique) {
  DDP_CHECK(step >= 0, "step {}", step);
  std::string temporary =
      join_path(path_, fmt::format("{}{}-{}", kTemporaryPrefix, entry_name(step, 0), unique));
  if (auto made = files_->make_directory(temporary); !made) return made.error();
  return temporary;
}

Result<Entry> Directory::publish(const std::string& temporary, const Manifest& manifest) {
  auto text = manifest_to_text(manifest);
  if (!text) return text.error();
  auto written = write_durably(*files_, join_path(temporary, kManifestName), *text);
  if (!written) return written.error();
  if (auto synced = files_->sync_directory(temporary); !synced) return synced.error();

  auto entries = list();
  if (!entries) return entries.error();
  std::int64_t generation = 0;
  for (const Entry& entry : *entries) {
    if (entry.step == manifest.step) generation = std::max(generation, entry.generation + 1);
  }
  Entry entry{manifest.step, generation, entry_name(manifest.step, generation), ""};
  entry.path = join_path(path_, entry.name);
  if (auto renamed = files_->rename(temporary, entry.path); !renamed) return renamed.error();
  if (auto synced = files_->sync_directory(path_); !synced) {
    // It is complete but may vanish in a power cut, so it does not count. Back, to leave nothing
    // half done.
    (void)files_->rename(entry.path, temporary);
    return synced.error();
  }
  bad_.erase(entry.name);
  return entry;
}

Result<void> Directory::discard(const std::string& temporary) {
  return remove_tree(*files_, temporary);
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

std::vector<std::string> Directory::prune(int keep, const Entry& newest) {
  DDP_CHECK(keep >= 0, "keep {}", keep);
  std::vector<std::string> complaints;
  auto entries = list();
  if (!entries) return {entries.error().message};
  int kept = 0;
  for (const Entry& entry : *entries) {
    if (entry.name == newest.name) {
      ++kept;
      continue;
    }
    const bool replaced = entry.step == newest.step && entry.generation < newest.generation;
    const bool superfluous = keep > 0 && kept >= keep;
    if (replaced || superfluous) {
      if (auto removed = remove_entry(entry); !removed) {
        complaints.push_back(removed.error().message);
      }
    } else if (keep > 0 && !bad_.contains(entry.name) && inspect(entry)) {
      ++kept;
    }
  }
  return complaints;
}

Result<void> Directory::remove_entry(const Entry& entry) {
  // Out of sight first, and durably: a half-removed checkpoint must never be seen under its name.
  const std::string removed =
      join_path(path_, fmt::format("{}removed-{}", kTemporaryPrefix, entry.name));
  if (auto renamed = files_->rename(entry.path, removed); !renamed) return renamed;
  if (auto synced = files_->sync_directory(path_); !synced) return synced;
  return remove_tree(*files_, removed);
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

Result<Manifest> Directory::inspect(const Entry& entry) const {
  const std::string path = join_path(entry.path, kManifestName);
  auto text = read_text(*files_, path, kMaxManifestBytes);
  if (!text) return text.error();
  auto manifest = parse_manifest(*text);
  if (!manifest) return Error{manifest.error().code, path + ": " + manifest.error().message};
  if (manifest->step != entry.step) {
    return make_error(Errc::kCorrupt, "{} is of step {}, its folder of {}", path, manifest->step,
                      entry.step);
  }
  for (const FileRecord& record : manifest->files) {
    const std::string file_path = join_path(entry.path, record.name);
    auto file = files_->open_file(file_path);
    if (!file) return file.error();
    if ((*file)->size() != record.bytes) {
      return make_error(Errc::kCorrupt, "{} has {} bytes, {} are recorded", file_path,
                        (*file)->size(), record.bytes);
    }
  }
  return manifest;
}

Result<Manifest> Directory::verify(const Entry& entry) const {
  auto manifest = inspect(entry);
  if (!manifest) return manifest;
  for (const FileRecord& record : manifest->files) {
    if (auto good = verify_file(entry, *manifest, record); !good) return good.error();
  }
  return manifest;
}

Result<void> Directory::verify_file(const Entry& entry, const Manifest& manifest,
                                    const FileRecord& record) const {
  const std::string path = join_path(entry.path, record.name);
  auto file = files_->open_file(path);
  if (!file) return file.error();
  Checksum checksum;
  std::vector<std::byte> piece(std::min<std::uint64_t>(kReadPiece, record.bytes));
  for (std::uint64_t offset = 0; offset < record.bytes; offset += piece.size()) {
    const std::span<std::byte> part(piece.data(),
                                    std::min<std::uint64_t>(piece.size(), record.bytes - offset));
    if (auto read = (*file)->read_at(offset, part); !read) return read;
    checksum.update(part);
  }
  if (const std::string actual = checksum.hex(); actual != record.checksum) {
    return make_error(Errc::kCorrupt, "the checksum of {} is {}, {} is recorded", path, actual,
                      record.checksum);
  }
  auto header = read_safetensors_header(**file, path);
  if (!header) return header.error();
  std::map<std::string_view, const TensorEntry*> in_file;
  for (const TensorEntry& tensor : header->tensors) in_file[tensor.name] = &tensor;
  std::size_t listed = 0;
  for (const TensorRecord& tensor : manifest.tensors) {
    if (tensor.file != record.name) continue;
    ++listed;
    const auto found = in_file.find(tensor.name);
    if (found == in_file.end() || found->second->type != tensor.type ||
        found->second->shape != tensor.shape) {
      return make_error(Errc::kCorrupt, "{} does not have tensor \"{}\" as the manifest says", path,
                        tensor.name);
    }
  }
  if (listed != header->tensors.size()) {
    return make_error(Errc::kCorrupt, "{} has {} tensors, the manifest {}", path,
                      header->tensors.size(), listed);
  }
  return {};
}

Result<std::optional<ValidSearch::Found>> ValidSearch::next() {
  if (!entries_) {
    auto entries = directory_->list();
    if (!entries) return entries.error();
    entries_ = std::move(*entries);
  }
  while (next_ < entries_->size()) {
    const Entry& entry = (*entries_)[next_++];
    auto manifest = directory_->verify(entry);
    if (manifest) return std::optional<Found>(Found{entry, std::move(*manifest)});
    reject(entry, manifest.error().message);
  }
  return std::optional<Found>();
}

void ValidSearch::reject(const Entry& entry, std::string_view reason) {
  directory_->mark_bad(entry);
  skipped_.push_back(fmt::format("{} passed over: {}", entry.path, reason));
}

Result<std::optional<ValidSearch::Found>> open_newest_valid(Directory& directory,
                                                            std::vector<std::string>* skipped) {
  ValidSearch search(directory);
  auto found = search.next();
  if (skipped != nullptr) *skipped = search.skipped();
  return found;
}

}  // namespace ddp::checkpoint
