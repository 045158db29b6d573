#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"

// What srun tells each of the processes that it starts, its tasks. Pure.
namespace ddp::slurm {

// getenv, or what a test puts in its place.
using GetEnvironment = std::function<const char*(const char* name)>;

// The place of one task in a step.
struct Step {
  std::string job_id;    // SLURM_JOB_ID
  std::string array_id;  // "ARRAY_TASK" of a job array; empty: the job is in none.
  std::string step_id;
  int restart = 0;  // How often SLURM has started the job again.

  std::vector<std::string> hosts;  // All nodes of the step, by node rank.
  std::vector<int> tasks;          // On each of them.
  int node_rank = 0;
  int rank = 0;        // Of this task among all tasks of the step: SLURM_PROCID.
  int local_rank = 0;  // Of this task on its node: SLURM_LOCALID.

  std::optional<std::int64_t> end_time;  // When the job's time is over, in seconds since 1970.

  int num_nodes() const { return static_cast<int>(hosts.size()); }
  // The tasks are the workers: on some node there are several. Else each node has one task, whose
  // ddp-run starts the workers.
  bool tasks_are_workers() const;
  int tasks_here() const { return tasks.at(static_cast<std::size_t>(node_rank)); }
  // Ranks count node by node, and so does `srun -m block`, which is the default; false with -m
  // cyclic and its like.
  bool ranks_follow_nodes() const;

  // JOB.STEP.RESTART: the name of the ddp-run job, the same on all nodes and never used again.
  std::string run_id() const;
  // JOB.RESTART: the same in all steps of the SLURM job, for nodes that are started one by one.
  std::string shared_run_id() const;
  // What scontrol calls the job.
  const std::string& scontrol_id() const { return array_id.empty() ? job_id : array_id; }

  friend bool operator==(const Step&, const Step&) = default;
};

// Nothing where this process is no task of a step: outside SLURM, in a batch script, in the shell
// of salloc, or in a worker of a ddp-run. kInvalidArgument names the variable that is missing or
// says something else than the others.
Result<std::optional<Step>> read_step(const GetEnvironment& environment);

// Ports at which the rendezvous of the step's first node may listen, in the order in which it tries
// them. They follow from the step alone, so all its nodes know them, and two steps that share a
// node seldom have one in common. All between 20000 and 31999, below what systems give to clients.
std::vector<int> rendezvous_ports(const Step& step);

// An allocation whose commands are started without srun.
struct Allocation {
  int num_nodes = 1;
  // This process runs on the first of its nodes, as a batch script does; salloc's shell may be
  // anywhere.
  bool on_a_node = false;
};

// Nothing in a step, in a worker of a ddp-run, or where there is no SLURM.
std::optional<Allocation> read_allocation(const GetEnvironment& environment);

}  // namespace ddp::slurm
