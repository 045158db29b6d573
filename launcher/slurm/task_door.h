#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "launcher/slurm/step/step.h"

namespace ddp::slurm {

// The socket (door) where the tasks of a node meet if each task is a worker. It belongs to the
// node's first task. It is a unix socket in the abstract namespace, so the kernel frees the name
// with its last holder, and a SIGKILL leaves no file. The first task's ddp-run creates it, and its
// agents serve it, one after the other. The other tasks wait there for the next agent, and at the
// end for their exit status.

// The name of the socket, without the leading NUL. All tasks of the node can compute it.
std::string task_socket_name(const Step& step);

// Creates the socket and listens. The descriptor is not close-on-exec. kExists if another process
// has the name.
Result<UniqueFd> open_task_door(const Step& step);

// Tells the node's other tasks to exit with `exit_code`, until `count` tasks have come or `limit`
// has passed. Call it when no agent serves the door any more.
void dismiss_tasks(const UniqueFd& door, int exit_code, int count, Duration limit);

}  // namespace ddp::slurm
