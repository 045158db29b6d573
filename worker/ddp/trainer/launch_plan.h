#pragma once

#include <string>
#include <vector>

#include "worker/runtime/worker_environment.h"

namespace ddp::trainer {

// What the options ask for, as far as it matters who starts the workers.
struct WantedWorkers {
  int devices = 0;    // 0: any.
  int num_nodes = 0;  // 0: any.
  bool one_process = false;
  std::string strategy;
};

// What to do about it.
struct LaunchPlan {
  // Not 0: this process was started alone, and has to start itself under ddp-run with so many.
  int start_workers = 0;
};

// Compares what is wanted with what `lookup` (the environment) says the launcher has started.
// Throws std::invalid_argument, which says what to type, where they do not fit.
LaunchPlan plan_launch(const WantedWorkers& wanted, const Lookup& lookup);

// The command for it: of this program with its arguments, by `launcher`.
std::vector<std::string> launch_command(const std::string& launcher, int workers,
                                        const std::vector<std::string>& program);

}  // namespace ddp::trainer
