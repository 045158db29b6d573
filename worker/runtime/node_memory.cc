#include "worker/runtime/node_memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/base/parse_number.h"
#include "common/base/secret.h"
#include "common/wire/shm_layout.h"
#include "worker/runtime/process_group.h"
#include "worker/runtime/trace.h"

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

// That of the memory that this process has opened, or else of the one that it was started with.
wire::LinkKey round_key() {
  KnownMemory& known = known_memory();
  const std::lock_guard lock(known.mutex);
  if (known.memory.mapping) return known.memory.mapping->header().link_key;
  const auto variable = process_variable("DDP_SHM_FD");
  const auto fd = variable ? parse_whole_number<int>(*variable, 0) : std::nullopt;
  wire::ShmHeader header;
  const auto read_part = [&](void* part, std::size_t bytes, std::size_t offset) {
    return ::pread(*fd, part, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  };
  // The number may be that of another file by now.
  const bool found =
      fd && read_part(&header.magic, sizeof(header.magic), 0) && header.magic == wire::kShmMagic &&
      read_part(&header.link_key, sizeof(header.link_key), offsetof(wire::ShmHeader, link_key));
  return found ? header.link_key : wire::LinkKey{};
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
    wire::TraceRing* const ring = wire::trace_ring_of((*mapping)->region(worker.local_rank));
    trace_into(*mapping, *ring);
  }
  return memory;
}

std::shared_ptr<const transport::LinkGuard> round_guard() {
  const wire::LinkKey key = round_key();
  if (key.protection == wire::LinkProtection::kNone) return nullptr;
  Secret secret(std::string(key.bytes.begin(), key.bytes.end()));
  auto guard = key.protection == wire::LinkProtection::kEncrypted
                   ? transport::LinkGuard::encrypting(std::move(secret))
                   : transport::LinkGuard::proving(std::move(secret));
  if (!guard) throw CollectiveError(guard.error().message, guard.error().code, -1);
  return *guard;
}

void forget_round_memory() {
  trace_nowhere();
  KnownMemory& known = known_memory();
  const std::lock_guard lock(known.mutex);
  known.memory = {};
  known.name.clear();
}

}  // namespace ddp::runtime
