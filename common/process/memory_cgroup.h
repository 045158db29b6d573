#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddp {

// A control group whose memory is counted.
struct MemoryCgroup {
  std::string folder;      // The folder of the group.
  std::string top_folder;  // The top of its hierarchy, because groups above may have limits, too.
  int version = 2;

  // The name of the file with its limit.
  const char* limit_file() const { return version == 2 ? "memory.max" : "memory.limit_in_bytes"; }
};

// The group of a process, from its /proc/PID/cgroup and /proc/PID/mountinfo. Empty if no group is
// visible. Pure.
std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup, std::string_view mountinfo);
std::optional<MemoryCgroup> own_memory_cgroup();

struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string folder;  // Of the group that has the limit.
};

// The smallest limit of the group and the groups above it; nothing if there is none.
std::optional<MemoryLimit> tightest_limit(const MemoryCgroup& group);

}  // namespace ddp
