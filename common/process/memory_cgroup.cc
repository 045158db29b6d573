#include "common/process/memory_cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace ddp {
namespace {

// Version 1 writes "no limit" as the largest number of whole pages.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

// Calls line(text) for each line until it returns false.
template <typename Line>
void for_each_line(std::string_view text, Line&& line) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    if (!line(text.substr(0, end))) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool has_word(std::string_view list, std::string_view word) {
  for (std::size_t at = 0; at <= list.size();) {
    const auto end = std::min(list.find(',', at), list.size());
    if (list.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

struct Mount {
  std::string root;  // The part of the hierarchy that is mounted there.
  std::string point;
};

// A line is "36 35 98:0 /root /point options - type source superoptions".
std::optional<Mount> find_mount(std::string_view mountinfo, int version) {
  std::optional<Mount> found;
  for_each_line(mountinfo, [&](std::string_view line) {
    const auto dash = line.find(" - ");
    if (dash == std::string_view::npos) return true;
    std::istringstream head{std::string(line.substr(0, dash))};
    std::istringstream tail{std::string(line.substr(dash + 3))};
    std::string skip, type, source, options;
    Mount mount;
    head >> skip >> skip >> skip >> mount.root >> mount.point;
    tail >> type >> source >> options;
    if (version == 2 ? type == "cgroup2" : type == "cgroup" && has_word(options, "memory"))
      found = mount;
    return !found;
  });
  return found;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup, std::string_view mountinfo) {
  // A line is "4:memory:/path", or "0::/path" in version 2. If both versions are mounted, version 1
  // has the memory controller.
  std::optional<std::string> path;
  int version = 2;
  for_each_line(cgroup, [&](std::string_view line) {
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return true;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool is_v1 = has_word(controllers, "memory");
    if (is_v1) version = 1;
    if (is_v1 || controllers.empty()) path = line.substr(second + 1);
    return !is_v1;
  });
  const auto mount = path ? find_mount(mountinfo, version) : std::nullopt;
  if (!mount || path->starts_with("/..")) return std::nullopt;
  std::string below = *path;
  if (mount->root != "/") {
    if (!below.starts_with(mount->root)) return std::nullopt;
    below.erase(0, mount->root.size());
  }
  while (below.ends_with('/')) below.pop_back();
  return MemoryCgroup{mount->point + below, mount->point, version};
}

std::optional<MemoryCgroup> own_memory_cgroup() {
  return memory_cgroup(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo"));
}

std::optional<MemoryLimit> tightest_limit(const MemoryCgroup& group) {
  std::optional<MemoryLimit> tightest;
  std::filesystem::path folder = group.folder;
  for (;;) {
    std::int64_t limit = kNoLimit;
    if (!(std::ifstream(folder / group.limit_file()) >> limit)) limit = kNoLimit;
    if (limit < kNoLimit && (!tightest || limit < tightest->bytes)) {
      tightest = MemoryLimit{.bytes = limit, .folder = folder};
    }
    if (folder == group.top_folder || !folder.has_relative_path()) return tightest;
    folder = folder.parent_path();
  }
}

}  // namespace ddp
