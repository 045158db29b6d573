#include "agent/process/memory_kills.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "common/base/size_text.h"

namespace ddp::agent {
namespace {

// The number after `name` in a file of "name number" lines.
std::optional<std::int64_t> number_of(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  std::int64_t number = 0;
  while (file >> word >> number) {
    if (word == name) return number;
  }
  return std::nullopt;
}

std::string events_file(const MemoryCgroup& group) {
  return group.folder + (group.version == 2 ? "/memory.events" : "/memory.oom_control");
}

}  // namespace

MemoryKills::MemoryKills(std::optional<MemoryCgroup> group) : group_(std::move(group)) {
  // The root group of version 2 has no such file.
  if (group_ && !number_of(events_file(*group_), "oom_kill")) group_.reset();
  claimed_ = count();
}

MemoryKills MemoryKills::of_this_process() { return MemoryKills(own_memory_cgroup()); }

std::int64_t MemoryKills::count() const {
  return group_ ? number_of(events_file(*group_), "oom_kill").value_or(claimed_) : 0;
}

int MemoryKills::unclaimed() const {
  return static_cast<int>(std::clamp<std::int64_t>(count() - claimed_, 0, 1 << 20));
}

std::string MemoryKills::limit() const {
  if (!group_) return "";
  const auto limit = tightest_limit(*group_);
  if (!limit) return "its control group has no limit, so the machine's memory was used up";
  return fmt::format("{} of {} is {}", group_->limit_file(), limit->folder,
                     size_text(limit->bytes));
}

}  // namespace ddp::agent
