#pragma once

#include <string>

namespace ddp::agent {

// How a process ended, and what its agent knows besides.
struct Ending {
  int exit_code = 0;
  int signal = 0;
  bool core_dumped = false;
  bool sent_by_agent = false;  // The agent had sent it this signal.
  // Of the control group: whether kills for lack of memory can be seen at all, those that are not
  // explained yet, and what limit there is.
  bool memory_is_watched = false;
  int memory_kills = 0;
  std::string memory_limit{};
  std::string message{};  // The exception that it ended of, if it has left one.
};

// A sentence for the report, such as "killed by the kernel: out of memory (memory.max of
// /sys/fs/cgroup/job is 2.0 GiB)"; empty where the exit status says all. Pure.
std::string describe_ending(const Ending& ending);

}  // namespace ddp::agent
