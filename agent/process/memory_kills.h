#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/process/memory_cgroup.h"

namespace ddp::agent {

// Counts how many processes the kernel has killed for lack of memory in this process's control
// group, to which its workers belong, too (memory.events in version 2, memory.oom_control in
// version 1).
class MemoryKills {
 public:
  // Kills before this do not count. Without a group nothing is ever counted.
  explicit MemoryKills(std::optional<MemoryCgroup> group);
  static MemoryKills of_this_process();

  bool can_tell() const { return group_.has_value(); }
  // Kills that were not claimed yet.
  int unclaimed() const;
  // Marks this many kills as explained.
  void claim(int kills) { claimed_ += kills; }
  void claim_all() { claim(unclaimed()); }
  // The tightest limit, "memory.max of /sys/fs/cgroup/job is 2.0 GiB"; or a text that there is
  // none.
  std::string limit() const;

 private:
  std::int64_t count() const;

  std::optional<MemoryCgroup> group_;
  std::int64_t claimed_ = 0;
};

}  // namespace ddp::agent
