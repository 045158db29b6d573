#pragma once

#include <vector>

#include "worker/runtime/process_group.h"

namespace ddp {

// Several operations as one. wait() returns, or throws the first failure, only when none of them
// uses its buffers any more. Null operations are skipped.
WorkPtr join_works(std::vector<WorkPtr> works);

}  // namespace ddp
