#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/status/ask_daemon.h"

namespace ddp::trace {

struct TraceRequest {
  status::Daemon daemon;
  std::string job_id;  // Empty: the only job.
};

// Asks the daemon for the trace of a running job and passes on what comes. A daemon that stands by
// says where the coordinator is. Returns when the job is over, or `more` returns false; that is
// called a few times a second, too, with nothing. Errors are exit_error, for people: no trace has
// begun, or (kExitCoordinatorLost) it was cut off, and what came was passed on.
Result<void> follow_trace(const TraceRequest& request,
                          const std::function<bool(std::string_view events)>& more);

}  // namespace ddp::trace
