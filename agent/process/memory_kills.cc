#include "agent/process/memory_kills.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace ddp::agent {
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

// The number after `name` in a file of "name number" lines.
std::optional<std::int64_t> number_of(std::string_view text, std::string_view name) {
  std::optional<std::int64_t> found;
  for_each_line(text, [&](std::string_view line) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ' ')
      return true;
    std::int64_t number = 0;
    line.remove_prefix(name.size() + 1);
    if (std::from_chars(line.data(), line.data() + line.size(), number).ec == std::errc())
      found = number;
    return false;
  });
  return found;
}

std::string events_file(const MemoryCgroup& group) {
  return group.folder + (group.version == 2 ? "/memory.events" : "/memory.oom_control");
}

std::string size_text(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  return fmt::format("{:.1f} {}", size, kUnits[unit]);
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

MemoryKills::MemoryKills(std::optional<MemoryCgroup> group) : group_(std::move(group)) {
  // The root group of version 2 has no such file.
  if (group_ && !number_of(read_text(events_file(*group_)), "oom_kill")) group_.reset();
  claimed_ = count();
}

MemoryKills MemoryKills::of_this_process() {
  return MemoryKills(
      memory_cgroup(read_text("/proc/self/cgroup"), read_text("/proc/self/mountinfo")));
}

std::int64_t MemoryKills::count() const {
  return group_ ? number_of(read_text(events_file(*group_)), "oom_kill").value_or(claimed_) : 0;
}

int MemoryKills::unclaimed() const {
  return static_cast<int>(std::clamp<std::int64_t>(count() - claimed_, 0, 1 << 20));
}

std::string MemoryKills::limit() const {
  if (!group_) return "";
  const std::string name = group_->version == 2 ? "memory.max" : "memory.limit_in_bytes";
  std::int64_t smallest = kNoLimit;
  std::string where;
  std::filesystem::path folder = group_->folder;
  for (;;) {
    std::int64_t limit = kNoLimit;
    const std::string text = read_text(folder / name);
    if (std::from_chars(text.data(), text.data() + text.size(), limit).ec != std::errc())
      limit = kNoLimit;
    if (limit < smallest) {
      smallest = limit;
      where = folder;
    }
    if (folder == group_->top_folder || !folder.has_relative_path()) break;
    folder = folder.parent_path();
  }
  if (where.empty()) return "its control group has no limit, so the machine's memory was used up";
  return fmt::format("{} of {} is {}", name, where, size_text(smallest));
}

}  // namespace ddp::agent
