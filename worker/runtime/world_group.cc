#include "worker/runtime/world_group.h"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "worker/runtime/calibration.h"

namespace ddp::runtime {
namespace {

[[noreturn]] void throw_error(const std::error_code& code, Rank suspect, const std::string& text) {
  throw CollectiveError(text, code, suspect);
}

struct NodeMemory {
  std::shared_ptr<transport::SharedMapping> mapping;
  std::shared_ptr<transport::Arena> arena;
};

// Identifies the memory that the agent gave for a round; nothing if it gave none.
using MemoryId = std::tuple<dev_t, ino_t, Round>;

std::optional<MemoryId> memory_id(const WorkerEnvironment& worker) {
  struct stat status {};
  if (worker.shm_fd < 0 || ::fstat(worker.shm_fd, &status) != 0) return {};
  return MemoryId{status.st_dev, status.st_ino, worker.round};
}

// Groups that a process makes one after another in a round share the memory. Buffers of an earlier
// group may still be in use, and other ranks may not have left its sub-groups yet. So there is one
// mapping and one arena, until the process opens those of another round.
struct KnownMemory {
  std::mutex mutex;
  std::shared_ptr<transport::Arena> arena;
  std::optional<MemoryId> id;
};

KnownMemory& known_memory() {
  static KnownMemory known;
  return known;
}

NodeMemory open_memory(const WorkerEnvironment& worker) {
  KnownMemory& known = known_memory();
  const std::lock_guard lock(known.mutex);
  const auto id = memory_id(worker);
  if (id && id == known.id) return {known.arena->mapping(), known.arena};
  auto mapping =
      worker.shm_fd >= 0
          ? transport::SharedMapping::attach(worker.shm_fd, worker.local_size, worker.round)
          : transport::SharedMapping::create(worker.local_size, worker.round);
  if (!mapping) throw_error(mapping.error().code, worker.rank, mapping.error().message);
  auto arena = std::make_shared<transport::Arena>(*mapping, worker.local_rank);
  if (id) {
    known.arena = arena;
    known.id = id;
  }
  return {*mapping, arena};
}

std::unique_ptr<transport::Transport> open_transport(const WorkerEnvironment& worker,
                                                     const Meeting& meeting, TimePoint deadline) {
  NodeMemory memory = open_memory(worker);
  Placement placement{{worker.local_size}, {}};
  std::vector<std::unique_ptr<transport::Link>> links;
  if (!meeting.store) {
    placement.locals.resize(static_cast<std::size_t>(worker.local_size));
    std::iota(placement.locals.begin(), placement.locals.end(), 0);
  } else {
    NodeLinks node_links(meeting, worker.round, deadline);
    auto failure = node_links.place(worker, placement);
    if (!failure)
      failure = node_links.connect(transport::Topology(placement.node_sizes, worker.rank), links);
    if (failure) throw_error(failure->code, failure->suspect, failure->text);
  }
  return std::make_unique<transport::Transport>(
      transport::Topology(placement.node_sizes, worker.rank),
      transport::Segment::of_ranks(std::move(memory.mapping), placement.locals),
      std::move(memory.arena), std::move(links), transport::spinning_pays(worker.local_size));
}

}  // namespace

void forget_round_memory() {
  KnownMemory& known = known_memory();
  const std::lock_guard lock(known.mutex);
  known.arena.reset();
  known.id.reset();
}

std::shared_ptr<Group> make_world_group(const WorkerEnvironment& worker, Meeting meeting,
                                        TimePoint deadline, const ProcessGroupOptions& options) {
  auto transport = open_transport(worker, meeting, deadline);
  auto group = Group::make(std::move(transport), worker.round, options, std::move(meeting));
  // Detect missing ranks now, within connect_timeout.
  const auto left = std::chrono::ceil<Duration>(deadline - Clock::now());
  group->barrier({std::max(left, Duration(1)), "all ranks present"})->wait();
  calibrate(*group);
  return group;
}

}  // namespace ddp::runtime
