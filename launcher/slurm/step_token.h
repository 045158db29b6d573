#pragma once

#include <optional>
#include <string>

#include "common/base/result.h"
#include "launcher/plan/job_plan.h"

// The secret of a job in a SLURM step on several nodes, if the user has given none. The first node
// makes it and shows it at /token of its rendezvous, sealed by MUNGE so that only the same user can
// read it. Both functions fill in spec.rdzv_token. Only for processes with one thread.
namespace ddp::slurm {

// On the first node, before it hosts the rendezvous: also fills in plan.sealed_token. Without MUNGE
// the job has no secret. If MUNGE is there but fails, a line on standard error says why.
void make_step_token(plan::JobPlan& plan);

// On the other nodes: `sealed` is what the first node shows, or nothing if it shows none. Errors
// are exit_error with kExitRefused: the token is not for this user, or there is none although MUNGE
// works here, so a stranger may have the port.
Result<void> take_step_token(plan::JobPlan& plan, const std::optional<std::string>& sealed);

}  // namespace ddp::slurm
