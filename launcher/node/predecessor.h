#pragma once

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/config/job_spec.h"

namespace ddp::node {

// Problem: a ddp-run is killed and started again at once with the same --node-rank. It would find
// its rank taken and its predecessor's workers still writing. This function waits until every
// process of the predecessor is gone, at most `limit`. It then holds the place for this ddp-run and
// its agents, which inherit the descriptor. The caller keeps the descriptor open to its end.
//
// The place is an abstract unix socket address, which the kernel frees with its last holder, so no
// file is left after a SIGKILL. The result is empty without --node-rank, and also if the
// predecessor stays; the coordinator then refuses this node. It is empty at once if another user
// has taken the name of the place.
UniqueFd wait_for_predecessor(const config::JobSpec& spec, Duration limit = Duration(5'000));

}  // namespace ddp::node
