#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "launcher/flags/flags.h"
#include "launcher/plan/job_plan.h"

// What ddp-run does in addition when srun has started it.
namespace ddp::slurm {

// For a task that is not the first of its node, so that the first task's agent supervises its
// worker: replaces this process by the program for such tasks. Returns only if that fails.
Error become_task(const flags::Options& options);

// A node's ddp-run in a step, from start to end. Does nothing outside a step.
class StepRun {
 public:
  // Opens the socket for the node's other tasks. If this node hosts the rendezvous and the
  // environment lacks the job's end time, asks SLURM for it. kExitInternal if the socket cannot be
  // opened.
  static Result<StepRun> begin(plan::JobPlan& plan);

  // The end: requeues the job if it is to go on and this node is responsible for that; waits for
  // the node that hosts the rendezvous if that is another one; and ends the node's other tasks with
  // the same status. `has_hosted`: the rendezvous was in this process.
  void end(const plan::JobPlan& plan, int exit_code, bool to_be_continued, bool has_hosted) const;

 private:
  UniqueFd door_;  // Invalid if this task is alone on its node.
};

// The error for a command line without srun in an allocation, which would run on one node alone or
// not on the job's nodes at all. Nothing if the flags ask for just that.
std::optional<Error> misplaced(const flags::Options& options,
                               const std::vector<std::string>& arguments,
                               const GetEnvironment& environment);

}  // namespace ddp::slurm
