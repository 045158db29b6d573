#pragma once

#include <string>

#include "common/base/clock.h"

namespace ddp::agent {

struct TaskOptions {
  std::string socket;  // Abstract name of the unix socket of this node's first task.
  int local_rank = 0;  // The local rank of this task, from 1.
  Duration join_limit{600'000};
};

// Serves a task of srun besides the node's first. When the agent of the first task orders it, it
// starts a worker, which runs with the CPUs, devices and control group of this task, and tells the
// agent how the worker ended. When the connection to an agent ends, it kills the worker and all its
// descendants. It then waits for the next agent, or until ddp-run says that the job is over.
//
// Blocks to the end of the job and returns the exit status: that of the job from ddp-run,
// kExitNodeLost if ddp-run is gone without telling it, kExitJoinTimeout if ddp-run never came. This
// process must have no children before, and has none afterwards. Signals that ask a job to end or
// to write a checkpoint are ignored: SLURM sends them to all tasks, and the first task acts on
// them.
int serve_task(const TaskOptions& options);

}  // namespace ddp::agent
