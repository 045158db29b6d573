#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "launcher/slurm/step.h"

namespace ddp::slurm {

// Where the tasks of a node come together when each of them is a worker: a unix socket of the
// node's first task, in the abstract namespace, so that the kernel frees the name with its last
// holder and a SIGKILL leaves no file. Its ddp-run makes it and its agents serve it, one after the
// other; the tasks wait there for the next agent, and at the end for the word to go.

// The name of the socket, without the NUL that it begins with; all tasks of the node know it.
std::string task_socket_name(const Step& step);

// Listens there. The descriptor is not close-on-exec. kExists where somebody else has the name.
Result<UniqueFd> open_task_door(const Step& step);

// Tells the tasks that are there, and those that come until `count` have or `limit` has passed, to
// exit with `exit_code`. When no agent serves the door any more.
void dismiss_tasks(const UniqueFd& door, int exit_code, int count, Duration limit);

}  // namespace ddp::slurm
