#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"
#include "launcher/ddp_run/job_plan.h"

// The secret of a job that is a step of SLURM's on several nodes, where nobody has given it one:
// the first node makes it and shows it at /token of its rendezvous, sealed by MUNGE so that only
// the same user can read it. Both fill in spec.rdzv_token. In a process with one thread.
namespace ddp::run {

// On the first node, before it hosts: fills in plan.sealed_token, too. Where there is no MUNGE the
// job has no secret; where there is one that does not work, a line on standard error says why.
void make_step_token(JobPlan& plan);

// On the others: `sealed` is what the first node shows; none: it shows nothing. Errors are
// exit_error with kExitRefused: what it shows is not for us, or it shows nothing although MUNGE
// works here, so that somebody else may be sitting at its port.
Result<void> take_step_token(JobPlan& plan, const std::optional<std::string>& sealed);

}  // namespace ddp::run
