#pragma once

#include <sys/types.h>

#include "worker/runtime/checkpoint_requests.h"

namespace ddp::python {

// What this process was asked for since the last call: runtime/checkpoint_requests.h. From the
// first call on, until the process's round is over, SIGTERM is a request. catches_usr1,
// catches_term: false leaves that signal to the program. Any thread; the GIL must not be held.
CheckpointRequests::Asked own_request(bool catches_usr1, bool catches_term);

// Whether a SIGTERM has asked this process to stop. Clears the request.
bool take_stop_request();

// The process's round is over. A SIGTERM has its former meaning again, also one that has come
// already: the agent ends processes that do not go on.
void end_requests(bool goes_on);

// For a process that reads data for the process `worker`: that one sees to SIGTERM and SIGUSR1.
// They end this process only if `worker` itself sends SIGTERM, or lives no longer.
void leave_requests_to(pid_t worker);

}  // namespace ddp::python
