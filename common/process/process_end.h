#pragma once

#include <sys/types.h>

#include "common/base/unique_fd.h"

namespace ddp {

// A pidfd of a child that is not reaped yet, so that its process id cannot have been reused. If
// there is none, the child is killed and reaped, and errno says why.
UniqueFd watch_child(pid_t child);

// Whether the process behind this pidfd has ended, reaped or not. Returns at once; any thread.
//
// Call it before you believe asio's async_wait() on a pidfd. Asio reuses the state of a closed
// descriptor for the next one, so an event that was queued for the old one can complete a wait on
// the new one. For a pipe this causes only an empty read. For a process it would make waitpid()
// block the loop, or make a living process count as ended.
bool has_ended(int pidfd);

}  // namespace ddp
