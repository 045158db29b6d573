#include "worker/checkpoint/file_system.h"

namespace ddp::checkpoint {

Result<void> WritableFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    Result<std::size_t> taken = write_some(bytes);
    if (!taken) return taken.error();
    DDP_CHECK(*taken > 0 && *taken <= bytes.size(), "{} of {} bytes", *taken, bytes.size());
    bytes = bytes.subspan(*taken);
  }
  return {};
}

Result<void> WritableFile::append(std::string_view text) {
  return append(std::as_bytes(std::span(text.data(), text.size())));
}

Result<std::string> read_text(FileSystem& files, const std::string& path, std::uint64_t limit) {
  auto file = files.open_file(path);
  if (!file) return file.error();
  const std::uint64_t size = (*file)->size();
  if (size > limit) {
    return make_error(Errc::kCorrupt, "{} has {} bytes, but at most {} are expected", path, size,
                      limit);
  }
  std::string text(size, '\0');
  auto read = (*file)->read_at(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  if (!read) return read.error();
  return text;
}

Result<void> write_durably(FileSystem& files, const std::string& path, std::string_view text) {
  auto file = files.create_file(path);
  if (!file) return file.error();
  if (auto written = (*file)->append(text); !written) return written.error();
  if (auto synced = (*file)->sync(); !synced) return synced.error();
  return (*file)->close();
}

Result<void> make_directories(FileSystem& files, const std::string& path) {
  const std::string parent = parent_path(path);
  if (files.list(path)) {
    // A run that died may have made it without making it durable. Best effort: the parent may
    // belong to another user.
    (void)files.sync_directory(parent);
    return {};
  }
  if (parent != path) {
    if (auto made = make_directories(files, parent); !made) return made;
  }
  auto made = files.make_directory(path);
  if (!made) {
    // Another rank may have been faster. If it is a file, listing it fails.
    if (made.error().code != Errc::kExists) return made;
    auto names = files.list(path);
    if (!names) return names.error();
  }
  return files.sync_directory(parent);
}

Result<void> remove_tree(FileSystem& files, const std::string& path) {
  Result<void> first;
  const auto note = [&first](Result<void> result) {
    // Another process was faster.
    if (!result && result.error().code == Errc::kNotFound) return;
    if (first && !result) first = std::move(result);
  };
  if (auto names = files.list(path); names) {
    for (const std::string& name : *names) note(files.remove_file(join_path(path, name)));
  } else {
    note(names.error());
  }
  note(files.remove_directory(path));
  return first;
}

std::string join_path(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path += '/';
  return path.append(name);
}

std::string parent_path(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  if (slash == 0) return "/";
  return std::string(path.substr(0, slash));
}

}  // namespace ddp::checkpoint
