#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_fd.h"

namespace ddp::agent {

struct SpawnRequest {
  // argv; command[0] is looked up in PATH as execvp does. Not empty.
  std::vector<std::string> command;
  std::vector<std::string> environment;  // The whole environment, NAME=value.
  int stdin_fd = -1;                     // -1: /dev/null.
  int stdout_fd = 1;
  int stderr_fd = 2;
  std::vector<int> inherited_fds;  // Stay open in the child under the same number.
  std::vector<int> cpus = {};      // CPUs that it runs on; empty: those of this process.
  // The program goes on when this process ends, and ignores the signals that may be sent to a job:
  // SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2.
  bool detached = false;
  // The process that, with its descendants, may read the stacks of the program if the system
  // restricts that (Yama); 0: the calling process.
  pid_t tracer = 0;
};

struct SpawnedProcess {
  pid_t pid = 0;   // Also its process group and its session.
  UniqueFd pidfd;  // Readable when it has ended; reap it with waitid(P_PIDFD).
};

// Starts a program in a session of its own, with default signal handlers, no blocked signals and
// only the named descriptors. Unless it is detached, SIGKILL ends it when the calling thread ends.
// So call this from a thread that lives as long as the process: the main thread. Returns when the
// program runs or could not be started:
//   kNotFound         there is no such program
//   kInvalidArgument  it exists but cannot be executed
//   kIo               the system could not make a process
// After a failure no process is left.
Result<SpawnedProcess> spawn(const SpawnRequest& request);

// Gives the descriptor a number from kKeptBack on, if the limit of open files allows. A program
// that spawn() starts gets no copy of those, not even one that exec closes (since Linux 5.11). That
// matters for files: closing a copy waits for the disk, and spawn() would wait with it.
inline constexpr int kKeptBack = 4'096;
UniqueFd keep_back(UniqueFd fd);

// The exit status that stands for a failed spawn: 127, 126 or kExitInternal.
int spawn_failure_status(const Error& error);
// The error code for such a status.
Errc spawn_failure_code(int status);

}  // namespace ddp::agent
