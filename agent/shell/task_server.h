#pragma once

#include <string>

#include "common/base/clock.h"

namespace ddp::agent {

struct TaskOptions {
  std::string socket;  // Abstract name of the unix socket of this node's first task.
  int local_rank = 0;  // Of this task, from 1.
  Duration join_limit{600'000};
};

// A task of srun beside the node's first: starts a worker in this process's own CPUs, devices and
// control group whenever the agent of the first task says so, and tells it how the worker ended.
// Nothing of a worker survives the connection to its agent; after that it waits for the next agent,
// or for ddp-run's word that all is over.
//
// Blocks to the end of the job and gives the exit status: the job's, as ddp-run says it,
// kExitNodeLost where ddp-run has gone without a word, kExitJoinTimeout where it never came. This
// process is to have no children, and nothing is left of it below. Signals that ask a job to end or
// to write a checkpoint are ignored: SLURM sends them to all tasks, and the first one acts on them.
int serve_task(const TaskOptions& options);

}  // namespace ddp::agent
