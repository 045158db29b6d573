#include "worker/checkpoint/target.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace ddp::checkpoint {

Result<Target> find_target(const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  auto there = posix_file_system().list(path);
  if (!there) return there.error();
  // Its real name: the link `latest` points to a checkpoint.
  std::error_code failed;
  const std::string name = std::filesystem::canonical(path, failed).filename().string();
  if (auto entry = parse_entry_name(name)) {
    entry->path = path;
    return Target{given, Directory(posix_file_system(), parent_path(path)), {std::move(*entry)}};
  }
  Target target{given, Directory(posix_file_system(), path), {}};
  auto entries = target.directory.list();
  if (!entries) return entries.error();
  target.entries = std::move(*entries);
  return target;
}

Result<ValidSearch::Found> newest_valid(const Target& target, std::ostream& err) {
  for (const Entry& entry : target.entries) {
    auto manifest = target.directory.verify(entry);
    if (manifest) return ValidSearch::Found{entry, std::move(*manifest)};
    err << fmt::format("{} passed over: {}\n", entry.path, manifest.error().message);
  }
  return make_error(Errc::kNotFound, "there is no valid checkpoint at {}", target.path);
}

std::uint64_t bytes_of(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const FileRecord& file : manifest.files) bytes += file.bytes;
  return bytes;
}

}  // namespace ddp::checkpoint
