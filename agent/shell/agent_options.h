#pragma once

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace ddp::agent {

// The command line of ddp-agent, which only ddp-run writes.
struct AgentOptions {
  int job_fd = -1;     // JobSpec as CBOR is read from there, to its end.
  int result_fd = -1;  // AgentResult as CBOR is written there.
  Round last_round = kNoRound;
  int restarts = 0;
  // "HOST PORT\n" is read from there when the coordinator moves; -1: never.
  int coordinator_fd = -1;
  int tasks_fd = -1;  // A unix socket that listens for the other tasks of srun; -1: none.
  // Not empty: this process is a task besides the node's first, and not an agent. Then only the
  // task_ options are used.
  std::string task_socket;
  int task_rank = 0;
  int task_limit_ms = 600'000;
  bool help = false;
  bool version = false;
};

inline constexpr const char* kAgentUsage =
    "ddp-run starts one ddp-agent on each node; start ddp-run instead.\n"
    "  --job-fd N        descriptor with the job description (CBOR), read to its end\n"
    "  --result-fd N     descriptor that gets the result (CBOR)\n"
    "  --last-round R    last round of the agent this one replaces\n"
    "  --restarts K      restarts of the job up to then\n"
    "  --coordinator-fd N  descriptor that tells the coordinator's address when it moves\n"
    "  --tasks-fd N      listening socket for the other tasks of srun on this node\n"
    "  --task-socket NAME --task-rank K --task-limit-ms MS\n"
    "                    run as such a task, for the worker with local rank K\n";

// `arguments` without the program's name. kInvalidArgument names the argument.
Result<AgentOptions> parse_agent_options(const std::vector<std::string>& arguments);

}  // namespace ddp::agent
