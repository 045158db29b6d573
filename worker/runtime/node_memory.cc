#include "worker/runtime/node_memory.h"

#include <sys/stat.h>

#include <mutex>

#include <fmt/format.h>

#include "worker/runtime/process_group.h"

namespace ddp::runtime {
namespace {

// Buffers of an earlier group may still be in use, and other ranks may not have left its sub-groups
// yet. So there is one mapping and one arena, until the process opens those of another round.
struct KnownMemory {
  std::mutex mutex;
  NodeMemory memory;
  std::string name;  // Of `memory`; empty: there is none.
};

KnownMemory& known_memory() {
  static KnownMemory known;
  return known;
}

}  // namespace

std::string agent_memory_name(const WorkerEnvironment& worker) {
  struct stat status {};
  if (worker.shm_fd < 0 || ::fstat(worker.shm_fd, &status) != 0) return {};
  return fmt::format("{}:{}:{}", status.st_dev, status.st_ino, worker.round);
}

NodeMemory open_agent_memory(const WorkerEnvironment& worker) {
  KnownMemory& known = known_memory();
  const std::lock_guard lock(known.mutex);
  const std::string name = agent_memory_name(worker);
  if (!name.empty() && name == known.name) return known.memory;
  auto mapping =
      worker.shm_fd >= 0
          ? transport::SharedMapping::attach(worker.shm_fd, worker.local_size, worker.round)
          : transport::SharedMapping::create(worker.local_size, worker.round);
  if (!mapping) throw CollectiveError(mapping.error().message, mapping.error().code, worker.rank);
  const NodeMemory memory{*mapping, std::make_shared<transport::Arena>(*mapping, worker.local_rank),
                          worker.local_rank};
  if (!name.empty()) {
    known.memory = memory;
    known.name = name;
  }
  return memory;
}

void forget_round_memory() {
  KnownMemory& known = known_memory();
  const std::lock_guard lock(known.mutex);
  known.memory = {};
  known.name.clear();
}

}  // namespace ddp::runtime
