#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "launcher/ddp_run/flags.h"
#include "launcher/ddp_run/job_plan.h"
#include "launcher/ddp_run/supervisor.h"

// What ddp-run does beyond its usual work where srun has started it.
namespace ddp::run {

// The task of a node that is not its first and whose worker the first one's agent supervises:
// becomes that task. Returns only if it cannot.
Error become_task(const Options& options);

// One node's ddp-run in a step, from its start to its end; does nothing where there is no step.
class StepRun {
 public:
  // Opens the door for the node's other tasks, asks for the end of the job's time where this node
  // hosts the rendezvous and SLURM has not said it. kExitInternal where the door cannot be opened.
  static Result<StepRun> begin(JobPlan& plan);

  // The end: starts the job again if it is to go on and this is the node that sees to it, waits for
  // the node that hosts the rendezvous if this is another one, and lets the node's other tasks go
  // with the same status. `has_hosted`: the rendezvous was here.
  void end(const JobPlan& plan, int exit_code, bool to_be_continued, bool has_hosted) const;

 private:
  UniqueFd door_;  // Invalid: this task is alone on its node.
};

// What is wrong with a command line that is started without srun in an allocation where it would
// run on one node alone, or not on the job's nodes at all; nothing where that is what its flags
// say.
std::optional<Error> misplaced(const Options& options, const std::vector<std::string>& arguments,
                               const GetEnvironment& environment);

// A line for a shell, quoted where it must be.
std::string shell_line(const std::vector<std::string>& words);

}  // namespace ddp::run
