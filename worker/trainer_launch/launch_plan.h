#pragma once

#include <string>
#include <vector>

#include "worker/runtime/worker_environment.h"

namespace ddp::trainer {

// The options that decide who starts the workers.
struct WantedWorkers {
  int devices = 0;    // 0: any.
  int num_nodes = 0;  // 0: any.
  bool one_process = false;
  std::string strategy;
  int max_restarts = 0;
};

// What to do about it.
struct LaunchPlan {
  enum class Start {
    kNothing,
    kWorkers,  // This process was started alone: it starts itself under ddp-run.
    kStep,     // It is a task of srun: ddp-run makes one job of all tasks.
  };
  Start start = Start::kNothing;
  int workers = 0;  // On this node; 0: those that srun has started.
  int max_restarts = 0;
};

// Compares the wanted workers with those that the launcher has started, according to `lookup` (the
// environment). If they do not match, throws std::invalid_argument that says what to type.
LaunchPlan plan_launch(const WantedWorkers& wanted, const Lookup& lookup);

// The command for it, if something is to be started: of this program with its arguments, by
// `launcher`.
std::vector<std::string> launch_command(const std::string& launcher, const LaunchPlan& plan,
                                        const std::vector<std::string>& program);

}  // namespace ddp::trainer
