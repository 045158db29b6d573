#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"

// Messages between an agent and the other tasks of its node, if srun has started one task for each
// worker. Each task's own process starts the worker of that task, so that the worker has the CPUs,
// the devices and the control group that SLURM has given to the task. The agent in the node's first
// task supervises the workers. The messages travel in frames over a unix socket of the node;
// PROTOCOL.md says who sends which message when. Pure.
namespace ddp::wire {

// The numbers of the descriptors that a worker of a task gets.
inline constexpr int kTaskControlFd = 100;
inline constexpr int kTaskMemoryFd = 101;

// ---- from a task ----

// The first message of every connection.
struct TaskHello {
  int local_rank = 0;
  std::vector<int> cpus;                 // The CPUs that the task may use.
  std::vector<std::string> environment;  // NAME=value.
};
// The answers to StartWorker. WorkerStarted comes with a pidfd of the process.
struct WorkerStarted {
  int pid = 0;
};
struct WorkerNotStarted {
  int status = 0;  // 127, 126 or kExitInternal.
  std::string why;
};
// The worker has ended and is not reaped yet. Until TakeStatus no other process can get its pid.
struct WorkerEnded {
  int pid = 0;
  int exit_code = 0;
  int signal = 0;
  bool core_dumped = false;
};
struct TaskCleared {
  int number = 0;         // The number of the ClearTask.
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
// Kill all descendants of the task's process, except `keep` and their descendants.
struct ClearTask {
  int number = 0;
  int limit_ms = 0;
  std::vector<int> keep;
};
// From ddp-run, when the job is over: exit with this status.
struct Dismiss {
  int exit_code = 0;
};

using TaskMessage = std::variant<TaskHello, WorkerStarted, WorkerNotStarted, WorkerEnded,
                                 TaskCleared, StartWorker, TakeStatus, ClearTask, Dismiss>;

// Strings hold any byte but NUL.
std::string encode(const TaskMessage& message);
// kProtocol for bytes that are not a message.
Result<TaskMessage> decode_task_message(std::string_view payload);

}  // namespace ddp::wire
