#pragma once

#include "common/base/ids.h"
#include "common/base/unique_fd.h"

namespace ddp::node {

// Problem: all processes of a node are killed at once, as when its container ends, so nobody
// removes its scratch folder (common/config/scratch_folder.h). This function makes the folder of
// `node_id` and locks it, and then removes those of this user that nobody has locked, at most some
// tens of them: the next calls find the rest.
//
// The caller keeps the descriptor while the folder is in use; the lock is a flock, which ends with
// the process. Empty if there can be no folder or no lock: then nothing is removed.
UniqueFd claim_scratch_folder(const NodeId& node_id);

}  // namespace ddp::node
