#pragma once

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"

namespace ddp::run {

// A ddp-run that is started again with the same --node-rank, right after another one was killed on
// this machine, would find its rank taken and its predecessor's workers still writing. This waits
// until every process of the predecessor is gone, `limit` at most, and holds the place for this
// ddp-run and its agents: they inherit the descriptor, which the caller keeps open to its end.
//
// What is held is an abstract unix socket address, which the kernel frees with its last holder: no
// file is left after a SIGKILL. Without --node-rank there is nothing to hold, and the result is
// empty; likewise if the predecessor stays, and then the coordinator refuses this node.
UniqueFd wait_for_predecessor(const config::JobSpec& spec, Duration limit = Duration(5'000));

}  // namespace ddp::run
