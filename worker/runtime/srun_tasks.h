#pragma once

#include <string>

#include "worker/runtime/worker_environment.h"

namespace ddp::runtime {

// What srun has started, if it started this process. Pure.
struct SrunTasks {
  int all = 0;  // 0: this process is not a task of srun, as in a batch script.
  int nodes = 1;
};
SrunTasks srun_tasks(const Lookup& lookup);

// The notice to print if this process is the first of several tasks of srun and no launcher has
// given it a place, so that each task would be a separate job. Empty otherwise.
std::string notice_of_lone_tasks(const Lookup& lookup);

}  // namespace ddp::runtime
