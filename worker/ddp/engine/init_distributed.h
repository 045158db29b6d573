#pragma once

#include <memory>

#include "worker/runtime/init_process_group.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The group of all ranks of the job. The first call makes it, collectively, with
// init_process_group(options); later calls return the same group while somebody holds it. Under
// ddp-run it has all workers; a program started alone gets a group of one. Any thread.
//
// In a program with a ddp::Trainer, it is the group of the round that the training is in; the
// options have no effect then, and only the training thread may call.
std::shared_ptr<ProcessGroup> init_distributed(const InitProcessGroupOptions& options = {});

// Whether `group` is init_distributed()'s. Any thread.
bool is_of_init_distributed(const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
