#include "worker/runtime/world_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/runtime/calibration.h"
#include "worker/runtime/node_links.h"
#include "worker/runtime/node_memory.h"

namespace ddp::runtime {
namespace {

[[noreturn]] void throw_error(const std::error_code& code, Rank suspect, const std::string& text) {
  throw CollectiveError(text, code, suspect);
}

std::unique_ptr<transport::Transport> open_transport(const WorkerEnvironment& worker,
                                                     Meeting& meeting, TimePoint deadline) {
  NodeMemory memory = open_agent_memory(worker);
  meeting.guard = round_guard();
  Placement placement{{worker.local_size}, {}};
  transport::LaneLinks links;
  if (!meeting.store) {
    placement.locals.resize(static_cast<std::size_t>(worker.local_size));
    std::iota(placement.locals.begin(), placement.locals.end(), 0);
  } else {
    NodeLinks node_links(meeting, worker.world_size, worker.round, deadline);
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
