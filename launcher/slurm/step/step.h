#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/environment.h"
#include "common/base/result.h"

// What srun tells each process that it starts (its tasks) through the environment. Pure.
namespace ddp::slurm {

// The place of one task in a step.
struct Step {
  std::string job_id;    // SLURM_JOB_ID
  std::string array_id;  // "ARRAY_TASK" of a job array; empty if the job is in none.
  std::string step_id;
  int restart = 0;  // How often SLURM has started the job again.

  std::vector<std::string> hosts;  // All nodes of the step, by node rank.
  std::vector<int> tasks;          // Number of tasks on each node.
  int node_rank = 0;
  int rank = 0;        // Rank of this task among all tasks of the step: SLURM_PROCID.
  int local_rank = 0;  // Rank of this task on its node: SLURM_LOCALID.

  std::optional<std::int64_t> end_time;  // When the job's time ends, in seconds since 1970.

  int num_nodes() const { return static_cast<int>(hosts.size()); }
  // Whether the tasks are the workers, which holds if some node has several tasks. Otherwise each
  // node has one task, whose ddp-run starts the workers.
  bool tasks_are_workers() const;
  int tasks_here() const { return tasks.at(static_cast<std::size_t>(node_rank)); }
  // Whether SLURM's ranks count node by node, as ddp-run's do. True with `srun -m block`, the
  // default; false with -m cyclic, for example.
  bool ranks_follow_nodes() const;

  // JOB.STEP.RESTART: the name of the ddp-run job, the same on all nodes and never used again.
  std::string run_id() const;
  // JOB.RESTART: the same in all steps of the SLURM job, for nodes that are started in steps of
  // their own.
  std::string shared_run_id() const;
  // What scontrol calls the job.
  const std::string& scontrol_id() const { return array_id.empty() ? job_id : array_id; }

  friend bool operator==(const Step&, const Step&) = default;
};

// Nothing if this process is not a task of a step: outside SLURM, in a batch script, in the shell
// of salloc, or in a worker of a ddp-run. The message of kInvalidArgument names the variable that
// is missing or contradicts the others.
Result<std::optional<Step>> read_step(const GetEnvironment& environment);

// Ports at which the rendezvous of the step's first node may listen, in the order in which it tries
// them. They follow from the step alone, so all its nodes know them. Two steps that share a node
// seldom have a port in common. All are between 20000 and 31999, below the ports that systems
// assign to clients.
std::vector<int> rendezvous_ports(const Step& step);

// An allocation, for a process that was started without srun.
struct Allocation {
  int num_nodes = 1;
  // This process runs on the allocation's first node, as a batch script does. salloc's shell may
  // run anywhere.
  bool on_a_node = false;
};

// Nothing in a step, in a worker of a ddp-run, or outside SLURM.
std::optional<Allocation> read_allocation(const GetEnvironment& environment);

}  // namespace ddp::slurm
