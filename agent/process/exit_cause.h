#pragma once

#include <string>

namespace ddp::agent {

// How a process ended, and what else its agent knows.
struct Ending {
  int exit_code = 0;
  int signal = 0;
  bool core_dumped = false;
  bool sent_by_agent = false;  // The agent had sent it this signal.
  // About the control group: whether kills for lack of memory can be seen at all, how many are not
  // explained yet, and the limit.
  bool memory_is_watched = false;
  int memory_kills = 0;
  std::string memory_limit{};
  std::string message{};  // The exception that ended it, if it has left one.
};

// A sentence for the report, for example "killed by the kernel: out of memory (memory.max of
// /sys/fs/cgroup/job is 2.0 GiB)"; empty if the exit status says everything. Pure.
std::string describe_ending(const Ending& ending);

}  // namespace ddp::agent
