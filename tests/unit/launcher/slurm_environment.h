#pragma once

#include <map>
#include <string>

// The environment variables of SLURM 22.05 that ddp-run reads.
namespace ddp::slurm {

using Environment = std::map<std::string, std::string>;

// Task 0 of `srun -N3`.
inline Environment one_task_a_node() {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_JOB_NUM_NODES", "3"},
          {"SLURMD_NODENAME", "n1"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "n[1-3]"},
          {"SLURM_STEP_NUM_NODES", "3"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
          {"SLURM_NODEID", "0"},
          {"SLURM_PROCID", "0"},
          {"SLURM_LOCALID", "0"}};
}

// Task 3 of `srun -N2 --ntasks-per-node=2`.
inline Environment two_tasks_a_node() {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_JOB_NUM_NODES", "2"},
          {"SLURMD_NODENAME", "n2"},
          {"SLURM_STEP_ID", "4"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
          {"SLURM_NODEID", "1"},
          {"SLURM_PROCID", "3"},
          {"SLURM_LOCALID", "1"}};
}

// A batch script of two nodes.
inline Environment batch_script() {
  return {{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURMD_NODENAME", "n1"},
          {"SLURM_NODEID", "0"},  {"SLURM_PROCID", "0"},        {"SLURM_LOCALID", "0"}};
}

// Sets some variables to other values; an empty value unsets one.
inline Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    environment.erase(name);
    if (!value.empty()) environment.emplace(name, value);
  }
  return environment;
}

}  // namespace ddp::slurm
