#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"

// What an agent and the other tasks of its node say to each other where srun has started one task
// for each worker: the worker of a task is started by that task's own process, so that it has the
// CPUs, the devices and the control group that SLURM has given to it, and is supervised by the
// agent in the node's first task. In frames over a unix socket of the node; PROTOCOL.md says who
// says what when. Pure.
namespace ddp::wire {

// Numbers that a worker of a task has its descriptors under.
inline constexpr int kTaskControlFd = 100;
inline constexpr int kTaskMemoryFd = 101;

// ---- from a task ----

// First of all, on every connection.
struct TaskHello {
  int local_rank = 0;
  std::vector<int> cpus;                 // Those it may use.
  std::vector<std::string> environment;  // NAME=value.
};
// The answers to StartWorker. A descriptor of the process (pidfd) comes with the first.
struct WorkerStarted {
  int pid = 0;
};
struct WorkerNotStarted {
  int status = 0;  // 127, 126 or kExitInternal.
  std::string why;
};
// Its status waits to be taken: until then the number is nobody else's.
struct WorkerEnded {
  int pid = 0;
  int exit_code = 0;
  int signal = 0;
  bool core_dumped = false;
};
struct TaskCleared {
  int number = 0;         // ClearTask's.
  bool complete = false;  // Nothing is left.
};

// ---- to a task ----

// With four descriptors: its output, its error output, its end of the control channel, the round's
// memory.
struct StartWorker {
  std::vector<std::string> command;
  std::vector<std::string> environment;
};
struct TakeStatus {
  int pid = 0;
};
// Kill what is below the task's process but `keep` and what is below those.
struct ClearTask {
  int number = 0;
  int limit_ms = 0;
  std::vector<int> keep;
};
// From ddp-run, when all is over: exit with this status.
struct Dismiss {
  int exit_code = 0;
};

using TaskMessage = std::variant<TaskHello, WorkerStarted, WorkerNotStarted, WorkerEnded,
                                 TaskCleared, StartWorker, TakeStatus, ClearTask, Dismiss>;

// Strings hold any byte but NUL.
std::string encode(const TaskMessage& message);
// kProtocol for bytes that are no message.
Result<TaskMessage> decode_task_message(std::string_view payload);

}  // namespace ddp::wire
