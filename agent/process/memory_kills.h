#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::agent {

// A control group whose memory is counted.
struct MemoryCgroup {
  std::string folder;      // Of the group.
  std::string top_folder;  // Where its hierarchy begins, for limits further up.
  int version = 2;
};

// The group of a process, from its /proc/PID/cgroup and /proc/PID/mountinfo. Nothing if it has none
// that can be seen from here. Pure.
std::optional<MemoryCgroup> memory_cgroup(std::string_view cgroup, std::string_view mountinfo);

// Counts the processes of this process's control group, where its workers are too, that the kernel
// has killed because memory had run out (memory.events in version 2, memory.oom_control in 1).
class MemoryKills {
 public:
  // Begins with the kills so far as known ones. Without a group nothing is ever counted.
  explicit MemoryKills(std::optional<MemoryCgroup> group);
  static MemoryKills of_this_process();

  bool can_tell() const { return group_.has_value(); }
  // Kills that nobody has claimed.
  int unclaimed() const;
  // They are explained.
  void claim(int kills) { claimed_ += kills; }
  void claim_all() { claim(unclaimed()); }
  // "memory.max of /sys/fs/cgroup/job is 2.0 GiB", the tightest there is; or that there is none.
  std::string limit() const;

 private:
  std::int64_t count() const;

  std::optional<MemoryCgroup> group_;
  std::int64_t claimed_ = 0;
};

}  // namespace ddp::agent
