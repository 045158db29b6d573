#pragma once

#include <memory>

#include "common/base/clock.h"
#include "worker/runtime/group.h"
#include "worker/runtime/meeting.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/worker_environment.h"

namespace ddp::runtime {

// Makes the group of all workers, once this one knows its place and where they meet. Collective;
// throws CollectiveError, which names the ranks that have not arrived by the deadline.
std::shared_ptr<Group> make_world_group(const WorkerEnvironment& worker, Meeting meeting,
                                        TimePoint deadline, const ProcessGroupOptions& options);

// Makes the group that `worker` describes: ProcessGroup::from_environment() for any environment.
std::shared_ptr<Group> make_described_group(const WorkerEnvironment& worker,
                                            const ProcessGroupOptions& options);

}  // namespace ddp::runtime
