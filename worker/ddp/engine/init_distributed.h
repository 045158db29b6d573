#pragma once

#include <memory>

#include "worker/runtime/init_process_group.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// The group of all ranks of the job: made by the first call, collectively, as
// init_process_group(options) makes it, and given by every later one as long as somebody has it.
// Under ddp-run it is that of its workers; a program started alone is a group of one. Any thread.
std::shared_ptr<ProcessGroup> init_distributed(const InitProcessGroupOptions& options = {});

// Whether it is that one. Any thread.
bool is_of_init_distributed(const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
