#pragma once

#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "worker/transport/transport.h"

namespace ddp {

// The transports of all ranks of a world whose ranks are threads of this process, or children that
// it forks afterwards: shared memory per node, socket pairs between nodes. Element r belongs to
// rank r. A forked child must destroy all elements but its own, or else nobody sees a peer's death.
// segments: the memory of each node; if empty, this function makes it.
Result<std::vector<std::unique_ptr<Transport>>> make_inproc_transports(
    const std::vector<int>& node_sizes, Round round,
    std::vector<std::shared_ptr<Segment>> segments = {});

}  // namespace ddp
