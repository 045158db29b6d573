#pragma once

#include <memory>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/runtime/group.h"
#include "worker/runtime/meeting.h"
#include "worker/runtime/process_group.h"

namespace ddp::runtime {

// Makes a group of processes that know only their numbers and a store, whatever started them. Ranks
// that follow one another and run on one machine share memory: the agent's, if ddp-run started
// them, or memory that the first of them makes and hands to the others as a descriptor. If that
// fails, they use TCP, and a line on standard error says why.
//
// A group of ranks that already have a group in common shares that group's memory and watch, and
// fails together with it. meeting.prefix must be new in the store.
//
// Collective; throws CollectiveError, which names the ranks that have not arrived by the deadline.
std::shared_ptr<Group> make_met_group(Rank rank, int world_size, Meeting meeting,
                                      TimePoint deadline, const ProcessGroupOptions& options);

}  // namespace ddp::runtime
