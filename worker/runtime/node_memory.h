#pragma once

#include <memory>
#include <string>

#include "worker/runtime/worker_environment.h"
#include "worker/transport/arena.h"
#include "worker/transport/link_guard.h"
#include "worker/transport/shared_mapping.h"

namespace ddp::runtime {

// The memory that this process shares with other ranks of its node, and its own part of it.
struct NodeMemory {
  std::shared_ptr<transport::SharedMapping> mapping;
  std::shared_ptr<transport::Arena> arena;
  int region = 0;  // This process's, in the mapping.
};

// The memory that the agent gave for the worker's round; private memory without an agent. Groups
// that a process makes one after another in a round share it. Throws CollectiveError.
NodeMemory open_agent_memory(const WorkerEnvironment& worker);

// One word that names the agent's memory for the round; empty if the worker has none.
std::string agent_memory_name(const WorkerEnvironment& worker);

// What guards this process's connections to other nodes in its round, with the key that the agent
// has put into that memory; null: it has put none, or there is no agent. Throws CollectiveError if
// a library is missing.
std::shared_ptr<const transport::LinkGuard> round_guard();

// Releases the memory of the round that this process has left; it is unmapped when the last buffer
// in it is released. Without this call it stays until the next round's group is made.
void forget_round_memory();

}  // namespace ddp::runtime
