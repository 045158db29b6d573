#pragma once

#include <memory>

#include "worker/runtime/process_group.h"

namespace ddp {

// torch.distributed.new_subgroups: a group of every `group_size` consecutive ranks; returns the one
// that this rank is in. Collective. Throws std::invalid_argument, on all ranks, unless the size of
// `group` is a multiple of group_size.
std::shared_ptr<ProcessGroup> new_subgroups(ProcessGroup& group, int group_size);

// A group of the ranks of each node, by the GROUP_RANK that ddp-run gives its workers; without it,
// all ranks are on one node. Collective.
std::shared_ptr<ProcessGroup> new_node_subgroups(ProcessGroup& group);

}  // namespace ddp
