#pragma once

#include <string>

#include "worker/runtime/worker_environment.h"

namespace ddp {

// What srun has started, if it has started this process. Pure.
struct SrunTasks {
  int all = 0;  // 0: this process is no task of srun, as in a batch script.
  int nodes = 1;
};
SrunTasks srun_tasks(const Lookup& lookup);

// What to say where a process that no launcher has given a place is one of several tasks, each of
// which would be a job of its own; by the first of them, empty for the others and otherwise.
std::string notice_of_lone_tasks(const Lookup& lookup);

}  // namespace ddp
