#pragma once

#include <memory>

#include "worker/ddp/state/checkpoint_writer.h"
#include "worker/runtime/control_channel.h"
#include "worker/runtime/elastic_worker.h"
#include "worker/runtime/process_group.h"

namespace ddp {

// This process's place in the rounds of its job. The first call says to the agent that this process
// can take part in further rounds; init_distributed() gives the round's group from then on. Null
// without an agent, and if the agent was told otherwise before: by agent_channel() or
// init_distributed(). The training thread.
ElasticWorker* elastic_worker();
// This process's channel to the agent that started it, if there is one. The first call opens it; it
// closes when the process ends. Any thread.
ControlChannel& agent_channel();
// The writer that uses this agent. There is one for the process, so that a save outlives the
// training that made it. Null without an agent.
std::shared_ptr<CheckpointWriter> agent_writer();
// From now on the agent's abort orders are for this group.
void abort_by_agent(const std::shared_ptr<ProcessGroup>& group);

}  // namespace ddp
