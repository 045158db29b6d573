#pragma once

#include <memory>

#include "worker/ddp/state/checkpoint_writer.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// This process's channel to the agent that has started it, if one has: opened by the first call,
// closed when the process ends. Any thread.
ControlChannel& agent_channel();
// With that agent, one for the process, so that a save outlives the training that made it. Null
// without an agent.
std::shared_ptr<CheckpointWriter> agent_writer();
// From now on the agent's orders to abort are for this group.
void abort_by_agent(const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
